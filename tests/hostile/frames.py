"""How does a client speak HTTP/2 that follows none of its limits?"""

import contextlib
import socket
import struct

import hpack

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: str, value: str, indexed: bool = False) -> bytes:
    """A header field as HPACK's literal; `indexed` puts it into the dynamic table."""
    return bytes([0x40 if indexed else 0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def reference(index: int) -> bytes:
    """A field of the tables, one byte each time; the newest of the dynamic table is 62."""
    return bytes([0x80 | index])


# :method POST and :scheme http of the static table.
REQUEST = reference(3) + reference(6) + literal(":authority", "x")


def call_head(method: str, more: bytes = b"") -> bytes:
    path = literal(":path", f"/inference.GRPCInferenceService/{method}")
    return REQUEST + path + literal("content-type", "application/grpc") + literal("te", "trailers") + more


def message(content: bytes, is_compressed: bool = False) -> bytes:
    return bytes([is_compressed]) + struct.pack(">I", len(content)) + content


def open_connection(address: str, initial_window: int | None = None, receive_bytes: int | None = None) -> socket.socket:
    """A connection after its preface. What the server sends is left unread."""
    host, port = address.split(":")
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(8)
    made.connect((host, int(port)))
    settings = b"" if initial_window is None else struct.pack(">HI", INITIAL_WINDOW_SIZE, initial_window)
    made.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
    # The server says first what it allows: a stream's window, which holds from our acknowledgement on, and the connection's.
    kind = None
    while kind != WINDOW_UPDATE:
        head = made.recv(9, socket.MSG_WAITALL)
        if len(head) < 9:
            raise ConnectionError("the server wants no connection")
        kind = head[3]
        made.recv(int.from_bytes(head[:3], "big"), socket.MSG_WAITALL)
    made.sendall(frame(SETTINGS, ACK, 0))
    return made


def send_call(connection: socket.socket, stream: int, content: bytes, piece: int = 1 << 14, ends: bool = True, encoding: str = "") -> None:
    """One inference; with an encoding its message says that it is compressed, whatever it is."""
    more = literal("grpc-encoding", encoding) if encoding else b""
    connection.sendall(frame(HEADERS, END_HEADERS, stream, call_head("ModelInfer", more)))
    whole = message(content, is_compressed=bool(encoding))
    for at in range(0, len(whole), piece):
        last = ends and at + piece >= len(whole)
        connection.sendall(frame(DATA, END_STREAM if last else 0, stream, whole[at : at + piece]))


def frames_of(said: bytes):
    """The frames in it: kind, stream and payload; of HEADERS the fields in place of the payload."""
    decoder = hpack.Decoder()
    while len(said) >= 9:
        end = 9 + int.from_bytes(said[:3], "big")
        kind, stream, payload = said[3], int.from_bytes(said[5:9], "big"), said[9:end]
        said = said[end:]
        yield kind, stream, dict(decoder.decode(payload)) if kind == HEADERS else payload


def received(connection: socket.socket, within_s: float) -> bytes:
    """What the server said until it closed the connection or the time was over."""
    connection.settimeout(within_s)
    said = bytearray()
    with contextlib.suppress(OSError):
        while piece := connection.recv(1 << 16):
            said += piece
    return bytes(said)
