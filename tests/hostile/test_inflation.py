"""What if a client sends little that inflates to much, or compressed nonsense?

Somebody else asks for the server's health all the time, and must never wait.
"""

import concurrent.futures
import contextlib
import gzip
import http.client
import random
import socket
import threading
import time

import grpc
import numpy as np
import pytest
from clients import grpc_channel, http_call, pb, service_stub
from frames import DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, call_head, frame, literal, open_connection
from oversized import MIB, bomb, packed
from witness import falls_to, resident, settled

MODEL = "identity_fp32"
LIMIT = 64 << 20
TOO_LARGE = (
    f"Decompressed data size exceeds the maximum allowed value of {LIMIT} bytes. "
    "Use --http-max-input-size to increase the limit."
)
# No test asserts speed. A thread that inflates instead of answering would take many times as long.
HEALTH_WITHIN_S = 10
TIMEOUT_S = 240
MALFORMED = 100
# What the allocator may keep of a burst.
LEFT_BYTES_MAX = 8 << 20
ENCODINGS = ["gzip", "deflate"]
COMPRESSION = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}


@pytest.fixture(scope="module")
def victim(launcher):
    if launcher.oracle:
        pytest.skip("2.51 inflates whatever comes")
    with launcher.running("inflation", "--session-socket=off", repository=launcher.copy_of("inflation", MODEL)) as found:
        health(found)
        yield found


@pytest.fixture(scope="module")
def generous(launcher):
    """A server whose operator allows large inputs: only the ratio is left to refuse them."""
    if launcher.oracle:
        pytest.skip("2.51 inflates whatever comes")
    flags = ["--session-socket=off", f"--http-max-input-size={(1 << 31) - 1}"]
    with launcher.running("generous", *flags, repository=launcher.copy_of("generous", MODEL)) as found:
        yield found


def health(server) -> float:
    """Asks for it; the seconds until it is answered."""
    begun = time.monotonic()
    with contextlib.closing(http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)) as connection:
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().status == 200
    return time.monotonic() - begun


@contextlib.contextmanager
def health_is_answered(server):
    """All the time that the block lasts, to another client."""
    ended, times = threading.Event(), []

    def infer():
        while not ended.is_set():
            times.append(health(server))
            time.sleep(0.01)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(infer)
        try:
            yield
        finally:
            ended.set()
        running.result()
    assert times and max(times) < HEALTH_WITHIN_S, f"{max(times):.3f} s"


def http_infer(server, body: bytes, encoding: str, **more):
    headers = {"Content-Encoding": encoding, "Inference-Header-Content-Length": "10", **more}
    return http_call(server.http, "POST", f"/v2/models/{MODEL}/infer", body, headers)


# ---------------------------------------------------------------------------------------------- raw gRPC


FRAME_BYTES = 16384


@contextlib.contextmanager
def raw_call(server, method: str, encoding: str, message: bytes, ends: bool = True):
    """A call with one message that says it is compressed, whatever it is. No library sends such a thing. The windows that the
    server opens are large enough for all that is sent here."""
    with contextlib.closing(open_connection(server.grpc)) as one:
        one.settimeout(TIMEOUT_S)
        one.sendall(frame(HEADERS, END_HEADERS, 1, call_head(method, literal("grpc-encoding", encoding))))
        body = b"\1" + len(message).to_bytes(4, "big") + message
        for at in range(0, len(body), FRAME_BYTES):
            last = at + FRAME_BYTES >= len(body)
            one.sendall(frame(DATA, END_STREAM if last and ends else 0, 1, body[at : at + FRAME_BYTES]))
        yield Frames(one)


class Frames:
    """What comes over a socket."""

    def __init__(self, one: socket.socket):
        self.file = one.makefile("rb")

    def next(self) -> tuple[int, int, int, bytes]:
        """Kind, flags, stream and content; fails at the end of the connection."""
        head = self.file.read(9)
        assert len(head) == 9, "the connection has ended"
        content = self.file.read(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), content

    def until_the_call_has_ended(self) -> None:
        while True:
            kind, flags, stream, _ = self.next()
            assert (kind, stream) != (RST_STREAM, 1), "the call was broken off"
            if stream == 1 and kind in (DATA, HEADERS) and flags & END_STREAM:
                return


# ---------------------------------------------------------------------------------------------- bombs


def grpc_refusal(call) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


@pytest.fixture(scope="module")
def large():
    """Serialised already: a message of zeros, which the library compresses itself to a thousandth. It is so long that the
    limit on its size is reached before the limit on its ratio, which is 200."""
    return bytes(6 * LIMIT)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_over_http(victim, encoding):
    body = bomb(encoding)
    with health_is_answered(victim):
        answer = http_infer(victim, body, encoding)
    assert (answer.status, answer.error) == (400, TOO_LARGE)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_over_grpc(victim, large, encoding):
    with grpc_channel(victim.grpc) as channel, health_is_answered(victim):
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        refusal = grpc_refusal(lambda: call(large, timeout=TIMEOUT_S, compression=COMPRESSION[encoding]))
    assert refusal == (grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LARGE)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_in_a_stream(victim, large, encoding):
    with grpc_channel(victim.grpc) as channel, health_is_answered(victim):
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = call(iter([large]), timeout=TIMEOUT_S, compression=COMPRESSION[encoding])
        assert grpc_refusal(lambda: list(answers)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LARGE)


def test_many_bombs_at_the_same_time(victim):
    body = bomb("gzip")

    def send(at: int) -> None:
        if at % 2:
            assert http_infer(victim, body, "gzip").error == TOO_LARGE
            return
        with raw_call(victim, "ModelInfer", "gzip", body) as incoming:
            incoming.until_the_call_has_ended()

    with health_is_answered(victim), concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(16)))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_becomes_too_many_times_as_large(generous, encoding):
    body = packed(encoding, (MIB for _ in range(17)))
    text = (
        f"Decompressed data size exceeds the maximum allowed value of {16 << 20} bytes for {len(body)} compressed bytes: "
        f"200 times as many, or {16 << 20} if that is more. Send this data uncompressed."
    )
    answer = http_infer(generous, body, encoding)
    assert (answer.status, answer.error) == (400, text)
    with grpc_channel(generous.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        code, says = grpc_refusal(lambda: call(MIB * 17, timeout=TIMEOUT_S, compression=COMPRESSION[encoding]))
    # How many compressed bytes there are is the library's affair.
    begins, ends = text.split(f"{len(body)} compressed bytes")
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert says.startswith(begins) and says.endswith(ends), says


# ---------------------------------------------------------------------------------------------- honest clients


def tensor(values: np.ndarray) -> pb.ModelInferRequest:
    one = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=values.shape)
    return pb.ModelInferRequest(model_name=MODEL, inputs=[one], raw_input_contents=[values.tobytes()])


# Inflated where they are read, in a few steps, in many steps; and zeros, as far as they may go.
VALUES = [
    np.arange(100, dtype=np.float32),
    np.arange(1 << 18, dtype=np.float32),
    np.random.default_rng(7).random(5 << 20, dtype=np.float32),
    np.zeros(3 << 20, dtype=np.float32),
]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("values", VALUES, ids=["small", "some", "noise", "zeros"])
def test_honest_requests_are_answered_exactly(victim, values, encoding):
    raw = values.tobytes()
    with grpc_channel(victim.grpc) as channel:
        stub = service_stub(channel)
        answer = stub.ModelInfer(tensor(values), compression=COMPRESSION[encoding])
        assert answer.raw_output_contents[0] == raw
        answers = list(stub.ModelStreamInfer(iter([tensor(values)] * 3), compression=COMPRESSION[encoding]))
    assert [one.error_message for one in answers] == [""] * 3
    assert all(one.infer_response.raw_output_contents[0] == raw for one in answers)
    text = (
        b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[%d],"parameters":{"binary_data_size":%d}}],'
        b'"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}'
    ) % (len(values), len(raw))
    length = {"Inference-Header-Content-Length": str(len(text))}
    answer = http_infer(victim, packed(encoding, [text, raw]), encoding, **length)
    assert answer.status == 200 and answer.body.endswith(raw)
    answer = http_infer(victim, packed(encoding, [text, raw]), encoding, **length, **{"Accept-Encoding": "gzip"})
    assert answer.status == 200 and gzip.decompress(answer.body).endswith(raw)


# ---------------------------------------------------------------------------------------------- what is left behind


def malformed(encoding: str) -> list[bytes]:
    """A bomb, its half, nonsense, a beginning and then nonsense, and nearly all of something large."""
    noise = random.Random(7).randbytes(1 << 20)
    whole, fits = bomb(encoding), packed(encoding, (MIB for _ in range(15)))
    # A tensor that is announced, so that it has a block of its own.
    announced = b"\x0a\x0d" + MODEL.encode() + b"\x3a" + b"\x80\x80\x80\x40"
    return [
        whole,
        whole[: len(whole) // 2],
        noise,
        whole[:20] + noise,
        fits[:-5],
        packed(encoding, [announced, *[MIB] * 15])[:-5],
    ]


def test_malformed_requests_leave_no_memory_behind(victim):
    before = settled(lambda: resident(victim.pid))
    bodies = [(encoding, body) for encoding in ENCODINGS for body in malformed(encoding)]

    def send(at: int) -> None:
        encoding, body = bodies[at % len(bodies)]
        if at // len(bodies) % 2:
            assert http_infer(victim, body, encoding).status == 400
            return
        with raw_call(victim, "ModelInfer", encoding, body) as incoming:
            incoming.until_the_call_has_ended()

    with health_is_answered(victim), concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(MALFORMED)))
    left = falls_to(lambda: resident(victim.pid), before + LEFT_BYTES_MAX)
    print(f"resident: {left - before:+,} bytes")


def test_clients_that_go_away_meanwhile_leave_nothing_behind(victim):
    before = settled(lambda: resident(victim.pid))
    body = bomb("gzip")
    for method in ("ModelInfer", "ModelStreamInfer"):
        for _ in range(20):
            with raw_call(victim, method, "gzip", body):
                # All was sent, and nobody waits.
                pass
    health(victim)
    falls_to(lambda: resident(victim.pid), before + LEFT_BYTES_MAX)
