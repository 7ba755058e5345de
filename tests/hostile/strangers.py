"""How does a test speak as another user, and half an HTTP/2?"""

import contextlib
import socket

from frames import DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, PREFACE, SETTINGS, call_head, frame
from users import as_user


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


def is_over(one: socket.socket) -> bool:
    """Whether the server has closed the connection by now. It has sent nothing."""
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def close_all(connections) -> None:
    for one in connections:
        one.close()


# ---------------------------------------------------------------------------------------------- HTTP/2


def hello(window: int = 65535) -> bytes:
    """What a client says first. Its streams' windows have that size."""
    return PREFACE + frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2, "big") + window.to_bytes(4, "big"))


def call_headers(method: str, stream: int) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, call_head(method))


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
