"""Which attacks keep connections busy, open or unread?"""

import contextlib
import random
import socket
import struct
import time

from attack_table import DEFENCE, attack, close_after, crowd
from frames import (
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    call_head, frame, literal, message, open_connection, received, send_call,
)  # fmt: skip
from holding import MODEL, header_bomb, http_post, infer_message, many
from packets import HELLO, Raw, encode, welcomed
from strangers import connect, hello

MIB = 1 << 20
HELD_S = 0.5
# More than one user may have of the server under test.
IDLE = 1500
HALF_HEAD = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nX-Never: "
HALF_BODY = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf".encode()
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
BURST = 2000


def held_connections(url: str, count: int, first: bytes = b"") -> None:
    """So many at the same time, as far as the server takes them."""
    made = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            made.append(connect(url))
            made[-1].sendall(first)
    close_after(HELD_S, made)


def leave_with_a_reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


# ---------------------------------------------------------------------------------------------- half, idle, many


@attack
def half_heads(server):
    """heads of HTTP requests that never end"""
    held_connections(server.http, 500, HALF_HEAD)


@attack
def heads_a_byte_at_a_time(server):
    """200 heads of HTTP requests that come a byte at a time"""
    made = [connect(server.http) for _ in range(200)]
    for letter in HALF_HEAD:
        for one in made:
            with contextlib.suppress(OSError):
                one.sendall(bytes([letter]))
    close_after(0, made)


@attack
def half_bodies(server):
    """half bodies over HTTP, small ones and 8 of 16 MiB"""
    with many(8, lambda: http_post(server, 16 * MIB, 8 * MIB)):
        held_connections(server.http, 200, HALF_BODY)


@attack
def half_messages(server):
    """half messages over gRPC, 8 of 16 MiB"""
    half = message(infer_message(16 * MIB))[: 8 * MIB]

    def send() -> socket.socket:
        one = open_connection(server.grpc)
        with contextlib.suppress(OSError):
            one.sendall(frame(HEADERS, END_HEADERS, 1, call_head("ModelInfer")))
            for at in range(0, len(half), 1 << 14):
                one.sendall(frame(DATA, 0, 1, half[at : at + (1 << 14)]))
        return one

    with many(8, send):
        time.sleep(HELD_S)


@attack
def connections_in_a_storm(server):
    """connections that are opened and closed at once, to each port"""
    for at in range(BURST):
        with contextlib.suppress(OSError):
            one = connect((server.http, server.grpc, server.metrics)[at % 3])
            one.sendall((b"", LIVE, hello(), b"PRI")[at % 4])
            leave_with_a_reset(one)


@attack
def idle_connections(server):
    """as many idle connections as one user may have, and more"""
    held_connections(server.http, IDLE // 2)
    held_connections(server.grpc, IDLE, hello())


@attack
def nonsense(server):
    """random bytes to each port"""
    chance = random.Random()

    def send(at: int) -> None:
        with connect((server.http, server.grpc, server.metrics)[at % 3]) as one:
            one.sendall((b"", PREFACE, b"POST /v2/models/")[at // 3 % 3] + chance.randbytes(chance.choice([10, 1000, 100_000])))
            received(one, 0.1)

    crowd(60, send)


# ---------------------------------------------------------------------------------------------- unread answers


@attack
def unread_answers_over_http(server):
    """answers of 8 MiB over HTTP that nobody reads"""
    with many(16, lambda: http_post(server, 8 * MIB)):
        time.sleep(HELD_S)


@attack
def unread_answers_over_grpc(server):
    """answers of 8 MiB over gRPC that nobody reads"""
    content = infer_message(8 * MIB)

    def send() -> socket.socket:
        one = open_connection(server.grpc, initial_window=0)
        with contextlib.suppress(OSError):
            send_call(one, 1, content)
        return one

    with many(16, send):
        time.sleep(HELD_S)


@attack
def small_unread_answers(server):
    """500 small calls on each of 8 gRPC connections whose answers nobody reads"""
    content = infer_message(16_000)

    def send() -> socket.socket:
        one = open_connection(server.grpc, initial_window=0)
        with contextlib.suppress(OSError):
            for number in range(500):
                send_call(one, 2 * number + 1, content, piece=1 << 16)
        return one

    with many(8, send):
        time.sleep(HELD_S)


@attack
def unread_answers_of_a_session(server):
    """inferences in a session whose answers nobody reads"""
    packet = encode(2, infer={"request": infer_message(80_000)})
    with welcomed(server.session) as raw:
        raw.socket.settimeout(2)
        for _ in range(BURST):
            if not raw.send_anyway(packet):
                break
        with contextlib.suppress(OSError):
            raw.ended()


@attack
def pipelined_requests(server):
    """HTTP requests sent without end whose answers nobody reads"""
    made = [connect(server.http) for _ in range(8)]
    for one in made:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        one.settimeout(0.5)
        with contextlib.suppress(OSError):
            for _ in range(50):
                one.sendall(LIVE * 200)
    close_after(0, made)


# ---------------------------------------------------------------------------------------------- HTTP/2


@attack
def header_references(server):
    """indexed HPACK references over four thousand calls on each of 8 connections"""
    with many(8, lambda: header_bomb(server, 4096)):
        time.sleep(HELD_S)


@attack
def heads_without_end(server):
    """CONTINUATION frames without end"""
    with open_connection(server.grpc) as one:
        one.sendall(frame(HEADERS, 0, 1, call_head("ModelInfer")))
        for number in range(BURST):
            one.sendall(frame(CONTINUATION, 0, 1, literal(f"x{number}", "y" * 100) * 50))


@attack
def small_frames(server):
    """PING, SETTINGS and WINDOW_UPDATE frames, and DATA of one byte or none, without reading"""
    window = struct.pack(">I", 1)
    settings = struct.pack(">HI", 4, 65535)
    floods = [
        frame(PING, 0, 0, bytes(8)) * 1000,
        frame(SETTINGS, 0, 0, settings) * 1000,
        frame(SETTINGS, 0, 0, settings * 100) * 10,
        frame(WINDOW_UPDATE, 0, 0, window) * 1000,
        frame(WINDOW_UPDATE, 0, 1, window) * 1000,
        frame(DATA, 0, 1, b"") * 1000,
        frame(DATA, 0, 1, b"\0") * 1000,
    ]
    for flood in floods:
        with contextlib.suppress(OSError), open_connection(server.grpc) as one:
            one.settimeout(0.5)
            one.sendall(frame(HEADERS, END_HEADERS, 1, call_head("ModelInfer")))
            for _ in range(50):
                one.sendall(flood)


@attack
def rapid_resets(server):
    """calls that are reset as soon as they are sent"""
    reset, body = struct.pack(">I", 8), message(infer_message(400))
    with open_connection(server.grpc) as one:
        for number in range(BURST):
            stream = 2 * number + 1
            head = frame(HEADERS, END_HEADERS, stream, call_head("ModelInfer"))
            one.sendall(head + frame(DATA, END_STREAM, stream, body) * (number % 2) + frame(RST_STREAM, 0, stream, reset))


@attack
def empty_calls(server):
    """as many streams as may be open, on 8 connections, without a message"""

    def send() -> socket.socket:
        one = open_connection(server.grpc)
        with contextlib.suppress(OSError):
            for number in range(1024):
                one.sendall(frame(HEADERS, END_HEADERS, 2 * number + 1, call_head("ModelStreamInfer")))
        return one

    with many(8, send):
        time.sleep(HELD_S)


# ---------------------------------------------------------------------------------------------- sessions


@attack
def sessions_in_a_storm(server):
    """sessions that are opened and closed at once, half of them without a word"""
    for number in range(BURST):
        with contextlib.suppress(*DEFENCE), Raw(server.session) as raw:
            if number % 2:
                raw.send_anyway(encode(1, hello=HELLO))
            if number % 4 == 1:
                raw.send_anyway(encode(2, borrow={"byte_size": 1 << 16}))


@attack
def places_for_sessions(server):
    """as many sessions as one user may have, and more"""
    made = []
    for _ in range(100):
        with contextlib.suppress(*DEFENCE):
            raw = Raw(server.session)
            made.append(raw)
            raw.send_anyway(encode(1, hello=HELLO))
    close_after(HELD_S, made)
