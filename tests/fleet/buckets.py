"""Where are the buckets of the tests, and how is the way to them interrupted?"""

import contextlib
import hashlib
import http.client
import os
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

import setup_fleet

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMMAND = "import sys; from nerite.fleet._bucket import main; sys.exit(main(sys.argv[1:]))"
PATIENCE_S = 120
# The server believes it. Without one it refuses to replace an object.
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIATEST/20261130/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
# s3fs tries five times itself.
OPTIONS = ("key=AKIATEST", "secret=hunter2hunter2", "config_kwargs.retries.total_max_attempts=1")


def python() -> pathlib.Path:
    return setup_fleet.place() / "bin" / "python"


class Bucket:
    """A bucket of a small S3 server."""

    def __init__(self, port: int, name: str):
        self.port, self.name = port, name
        self._request("PUT", f"/{name}")

    def put(self, key: str, value: bytes) -> None:
        self._request("PUT", f"/{self.name}/{key}", value)

    def put_parts(self, key: str, *parts: bytes) -> None:
        """An upload in parts, whose ETag is no MD5."""
        path = f"/{self.name}/{key}"
        upload = self._request("POST", f"{path}?uploads").partition("<UploadId>")[2].partition("<")[0]
        listed = ""
        for number, part in enumerate(parts, 1):
            self._request("PUT", f"{path}?partNumber={number}&uploadId={upload}", part)
            listed += f"<Part><PartNumber>{number}</PartNumber><ETag>{hashlib.md5(part).hexdigest()}</ETag></Part>"
        self._request("POST", f"{path}?uploadId={upload}", f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode())

    def delete(self, key: str) -> None:
        self._request("DELETE", f"/{self.name}/{key}")

    def _request(self, method: str, path: str, body: bytes = b"") -> str:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, body, {"Authorization": SIGNED})
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status < 300, (method, path, text)
            return text


def sums(objects: Mapping[str, bytes]) -> bytes:
    """A file as sha256sum writes it."""
    return "".join(f"{hashlib.sha256(value).hexdigest()}  {key}\n" for key, value in objects.items()).encode()


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """The port of a small S3 server."""
    command = [python(), "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        line = next(line for line in process.stderr if "Running on" in line)
        # Each request writes a line.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield int(line.rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


class Proxy:
    """A way to a server on which answers can be cut, held and changed after so many bytes of all answers together."""

    def __init__(self, to: int):
        self._to, self._listener = to, socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self.passed_bytes = 0
        self._at = None
        self._fault = None
        #: Whether the fault happened.
        self.reached, self._go_on = threading.Event(), threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def fault(self, kind: "str | None", after_bytes: int = 0) -> None:
        """``cut`` ends all connections from this byte on, ``hold`` stops the answer, and ``change`` changes the byte."""
        with self._lock:
            self._fault, self._at = kind, self.passed_bytes + after_bytes
        self.reached.clear()
        self._go_on.clear()

    def go_on(self) -> None:
        self._fault = None
        self._go_on.set()

    def close(self) -> None:
        self._go_on.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self._to)) as server:
            threading.Thread(target=self._send, args=(client, server), daemon=True).start()
            while data := server.recv(1 << 16):
                data = self._through(data)
                if data is None:
                    # Else the other thread keeps the connection open.
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)

    def _send(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _through(self, data: bytes) -> "bytes | None":
        """The bytes that go on. None ends the connection."""
        with self._lock:
            kind, begin = self._fault, self.passed_bytes
            self.passed_bytes += len(data)
            if kind is None or self.passed_bytes <= self._at:
                return data
            if kind == "change":
                self._fault = None
                at = max(0, self._at - begin)
                data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        self.reached.set()
        if kind == "hold":
            self._go_on.wait(PATIENCE_S)
        return None if kind == "cut" else data


def command(url: str, folder: pathlib.Path, *more: str, endpoint: "int | None" = None) -> list:
    options = [f"endpoint_url=http://127.0.0.1:{endpoint}", *OPTIONS] if endpoint else []
    return [python(), "-c", COMMAND, url, folder, *(f"--option={option}" for option in options), *more]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), **more}


def started(*words, **more: str) -> subprocess.Popen:
    return subprocess.Popen(words, env=environment(**more), stderr=subprocess.PIPE, text=True)


def run(*words, **more: str) -> "tuple[int, str]":
    """The exit status and the log."""
    done = subprocess.run(words, env=environment(**more), stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    print(done.stderr, file=sys.stderr)
    assert "hunter2" not in done.stderr
    return done.returncode, done.stderr
