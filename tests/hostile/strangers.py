"""How does a test speak as another user, and HTTP/2 without a library?"""

import contextlib
import socket

from users import as_user

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, GOAWAY = 0, 1, 4, 7
ACK, END_STREAM, END_HEADERS = 1, 1, 4


def connections_of(uid: int, url: str, count: int, first: bytes = b"") -> list[socket.socket]:
    """Connections of that user, each with `first` sent. A connection belongs to whoever made its socket."""

    def make():
        made = [connect(url) for _ in range(count)]
        for one in made:
            with contextlib.suppress(OSError):
                one.sendall(first)
        return made

    return as_user(uid, make)


def connect(url: str) -> socket.socket:
    host, _, port = url.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def is_ended(one: socket.socket, seconds: float) -> bool:
    """Whether the server closes the connection within that time. What it sends until then is read."""
    one.settimeout(seconds)
    try:
        while one.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def close_all(connections) -> None:
    for one in connections:
        one.close()


# ---------------------------------------------------------------------------------------------- HTTP/2


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def hello(window: int = 65535) -> bytes:
    """What a client says first. Its streams' windows have that size."""
    return PREFACE + frame(SETTINGS, 0, 0, (4).to_bytes(2, "big") + window.to_bytes(4, "big"))


def begin_http2(url: str) -> socket.socket:
    """A connection on which both sides have agreed on the server's windows, which are large."""
    one = connect(url)
    one.sendall(hello())
    head = read_exactly(one, 9)
    assert head[3] == SETTINGS
    read_exactly(one, int.from_bytes(head[:3], "big"))
    one.sendall(frame(SETTINGS, ACK, 0))
    return one


def call_headers(method: str, stream: int) -> bytes:
    fields = {
        ":method": "POST", ":scheme": "http", ":authority": "test", "te": "trailers",
        ":path": f"/inference.GRPCInferenceService/{method}", "content-type": "application/grpc",
    }  # fmt: skip
    ordered = sorted(fields.items(), key=lambda field: not field[0].startswith(":"))
    block = b"".join(b"\x00" + text(name) + text(value) for name, value in ordered)
    return frame(HEADERS, END_HEADERS, stream, block)


def text(value: str) -> bytes:
    assert len(value) < 127
    return bytes([len(value)]) + value.encode()


def message(serialized: bytes) -> bytes:
    return b"\0" + len(serialized).to_bytes(4, "big") + serialized


def data(stream: int, payload: bytes, end: bool = False) -> bytes:
    """DATA frames with `payload`."""
    parts = [payload[at : at + 16384] for at in range(0, len(payload), 16384)] or [b""]
    flags = [0] * (len(parts) - 1) + [END_STREAM if end else 0]
    return b"".join(frame(DATA, flag, stream, part) for flag, part in zip(flags, parts))


def read_until_end(one: socket.socket, stream: int) -> dict[int, bytes]:
    """The payloads of a stream's frames by their kinds, up to the one that ends it."""
    found: dict[int, bytes] = {}
    while True:
        head = read_exactly(one, 9)
        payload = read_exactly(one, int.from_bytes(head[:3], "big"))
        if int.from_bytes(head[5:], "big") == stream:
            found[head[3]] = found.get(head[3], b"") + payload
            if head[4] & END_STREAM and head[3] in (DATA, HEADERS):
                return found


def read_exactly(one: socket.socket, count: int) -> bytes:
    read = b""
    while len(read) < count:
        part = one.recv(count - len(read))
        assert part, "the connection ended"
        read += part
    return read
