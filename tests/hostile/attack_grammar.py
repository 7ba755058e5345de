"""Which attacks break the rules of HTTP/1.1 and HTTP/2, one by one?"""

import contextlib
import os
import struct

from attack_table import attack, crowd
from frames import DATA, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, open_connection, received
from strangers import connect

GO_AWAY, PRIORITY, PUSH_PROMISE, UNKNOWN = 7, 2, 5, 99
ACK, PADDED_WITH_PRIORITY_AND_END = 1, 0x2D
LISTENED_S = 0.1
BIT = 1 << 31

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + os.urandom(300)
# First lines and heads that are none of this server's.
HEADS = [
    TLS_HELLO,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /v2 HTTP/0.9\r\n\r\n",
    b"GET /v2 HTTP/9.9\r\n\r\n",
    b"GET http://other/v2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT other:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n",
    b"GET /v2/models/" + b"..%2f" * 2000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v2/models/%00%ff%fe%0d%0aX:1/config HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x05\x01\x00",
]
# What is said of a body's length, falsely, twice, or with a second opinion.
FRAMINGS = [
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 0x5\r\n",
    b"Content-Length: 99999999999999999999999\r\n",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"X\x00Y: 1\r\nContent-Length: 5\r\n",
    b" folded: 1\r\nContent-Length: 5\r\n",
    b"Inference-Header-Content-Length: -3\r\nContent-Length: 5\r\n",
    b"Inference-Header-Content-Length: 18446744073709551616\r\nContent-Length: 5\r\n",
    b"Content-Encoding: gzip, gzip, gzip\r\nContent-Length: 5\r\n",
    b"Expect: 100-continue\r\nContent-Length: 4000000\r\n",
]
BODY_AND_NEXT = b"5\r\nhello\r\n0\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
# Frames that HTTP/2 forbids at this place, of this length or with this content.
FRAMES = [
    frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", BIT - 1)) * 2,
    frame(WINDOW_UPDATE, 0, 0, bytes(4)),
    frame(SETTINGS, 0, 0, b"abc"),
    frame(SETTINGS, ACK, 0, b"abcdef"),
    frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 1)),
    frame(SETTINGS, 0, 0, struct.pack(">HI", 4, BIT)),
    frame(DATA, 0, 0, b"x"),
    frame(DATA, 0, 2, b"x"),
    frame(HEADERS, PADDED_WITH_PRIORITY_AND_END, 1, b"\xff" * 100),
    frame(PRIORITY, 0, 1, struct.pack(">IB", 1, 5)),
    frame(PRIORITY, 0, 1, b"x"),
    frame(RST_STREAM, 0, 1, bytes(4)),
    frame(PUSH_PROMISE, 4, 1, struct.pack(">I", 2)),
    frame(PING, 0, 3, bytes(8)),
    frame(GO_AWAY, 0, 0, bytes(8) + b"x" * 16_000),
    frame(UNKNOWN, 255, BIT - 1, b"x" * 16_384),
    b"\xff\xff\xff" + bytes(5) + b"\x01" + b"x" * 100_000,
]


def send(url: str, content: bytes) -> None:
    with connect(url) as one:
        one.sendall(content)
        received(one, LISTENED_S)


@attack
def heads_of_other_protocols(server):
    """TLS, HTTP/2 and heads that no client of HTTP/1.1 sends, to each port"""
    ports = (server.http, server.grpc, server.metrics)
    crowd(len(HEADS) * len(ports), lambda at: send(ports[at % len(ports)], HEADS[at // len(ports)]))


@attack
def bodies_of_doubtful_length(server):
    """bodies whose length is told twice, falsely or with a second encoding, followed by a second request"""
    post = b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\n"
    crowd(2 * len(FRAMINGS), lambda at: send(server.http, post + FRAMINGS[at // 2] + b"\r\n" + BODY_AND_NEXT))


@attack
def extensions_and_trailers(server):
    """chunks with megabytes of extensions, and thousands of trailers"""

    def flood(at: int) -> None:
        with connect(server.http) as one:
            one.settimeout(LISTENED_S)
            one.sendall(CHUNKED + (b"1;" if at % 2 else b"0\r\n"))
            for number in range(200):
                one.sendall(b"x=" + b"y" * 65_000 + b";" if at % 2 else b"T%d: " % number + b"z" * 500 + b"\r\n")

    crowd(8, flood)


@attack
def frames_against_the_rules(server):
    """frames that HTTP/2 forbids at that place, of that length or with that content"""

    def one_frame(at: int) -> None:
        with open_connection(server.grpc) as one:
            one.sendall(FRAMES[at])
            received(one, LISTENED_S)

    crowd(len(FRAMES), one_frame)


@attack
def settings_that_change(server):
    """windows and header tables that grow to the most and shrink to nothing, thousands of times"""
    waves = [struct.pack(">HIHI", 4, window, 1, table) for window, table in ((BIT - 1, 4096), (0, 0))]

    def change(_: int) -> None:
        with open_connection(server.grpc) as one:
            one.settimeout(LISTENED_S)
            for _ in range(20):
                one.sendall(b"".join(frame(SETTINGS, 0, 0, wave) for wave in waves) * 100)
                with contextlib.suppress(OSError):
                    one.recv(1 << 16)

    crowd(8, change)
