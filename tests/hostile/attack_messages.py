"""Which attacks are single requests that are more work, or more memory, than an honest one?"""

import base64
import functools
import json
import random
import struct

import grpc
import numpy as np
from attack_table import attack, crowd, post
from clients import Given, GrpcClient, Refused, fp32, http_call, http_infer, pb
from frames import open_connection, received, send_call
from holding import head
from oversized import bomb, json_input, many, names
from packets import encode, open_session, welcomed
from strangers import connect

INFER = "/v2/models/identity_fp32/infer"
NAMES_OF_JSON, NAMES_OF_GRPC, NAMES_OF_A_PACKET = 60_000, 100_000, 9000
ONE_INPUT = [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]
DEEP = 100_000
# About a second of one processor.
TRIPS = 300_000
SIZES_TOO_LARGE = [[1 << 62, 4], [(1 << 63) - 1] * 4, [1 << 32, 1 << 32], [1 << 31] * 8, [0, 1 << 63], [-1], [-(1 << 62), -4], [1] * 5000]


@functools.cache
def grpc_client(address: str) -> GrpcClient:
    """One for each process, made after its fork."""
    return GrpcClient(grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]))


def grpc_bytes(server, method: str, message: bytes) -> None:
    raw_call(server.grpc, method)(message, timeout=60)


@functools.cache
def raw_call(address: str, method: str):
    channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])
    return channel.unary_unary(f"/inference.GRPCInferenceService/{method}")


# ---------------------------------------------------------------------------------------------- many of a thing


@functools.cache
def texts_of_names() -> list[bytes]:
    documents = [
        {"inputs": many(NAMES_OF_JSON, json_input)},
        {"inputs": ONE_INPUT, "outputs": many(NAMES_OF_JSON, lambda n: {"name": f"n{n}"})},
        {"inputs": ONE_INPUT, "parameters": {f"p{n}": n for n in range(NAMES_OF_JSON)}},
        {"inputs": many(NAMES_OF_JSON, lambda n: json_input(0))},
    ]
    return [json.dumps(one).encode() for one in documents]


@attack
def names_over_http(server):
    """JSON with 60,000 inputs, outputs or parameters"""
    bodies = texts_of_names()
    crowd(8, lambda at: post(server, INFER, bodies[at % len(bodies)]))


@functools.cache
def messages_of_names() -> list[bytes]:
    return [names(number, NAMES_OF_GRPC) for number in (4, 5, 6, 7)]


@attack
def names_over_grpc(server):
    """gRPC messages with 100,000 parameters, inputs, outputs or raw contents"""
    found = messages_of_names()
    crowd(8, lambda at: grpc_bytes(server, "ModelInfer", found[at % len(found)]))


@attack
def names_in_a_session(server):
    """session packets with 9,000 parameters, inputs, outputs or raw contents"""
    with welcomed(server.session) as raw:
        for id in range(2, 10):
            raw.send(encode(id, infer={"request": names(4 + id % 4, NAMES_OF_A_PACKET)}))
            raw.receive()


@attack
def strings_without_end(server):
    """four million empty strings as one input"""
    count = 4 << 20
    given = {"name": "INPUT0", "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": 4 * count}}
    http_infer(server.http, "identity_bytes", {"inputs": [given]}, bytes(4 * count))


@attack
def numbers_as_text(server):
    """half a million numbers as JSON, answered as JSON"""
    values = [1.5] * 500_000
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [len(values)], "data": values}]})
    crowd(2, lambda _: post(server, INFER, body))


@attack
def json_of_great_depth(server):
    """JSON nested a hundred thousand times, in each place where a value may stand"""
    deep = b"[" * DEEP
    bodies = [
        deep,
        b'{"inputs":' * DEEP,
        b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":' + deep + b"1" + b"]" * DEEP + b"}]}",
        b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":' + deep + b"]" * DEEP + b"}]}",
        b'{"parameters":{"a":' + deep + b"]" * DEEP + b"}}",
        b'{"INPUT0":' + deep + b"1" + b"]" * DEEP + b"}",
    ]
    paths = [INFER, "/v2/models/identity_fp32/generate", "/v2/repository/index", "/v2/logging"]
    crowd(len(bodies) * len(paths), lambda at: post(server, paths[at % len(paths)], bodies[at // len(paths)]))


@attack
def chunks_of_one_byte(server):
    """a body in 60,000 chunks of one byte each"""
    crowd(4, lambda _: post(server, INFER, (b" " for _ in range(60_000))))


@attack
def shapes_that_overflow(server):
    """dimensions whose product overflows, negative ones, and five thousand of them"""
    client = grpc_client(server.grpc)

    def send(at: int) -> None:
        shape = SIZES_TOO_LARGE[at % len(SIZES_TOO_LARGE)]
        post(server, INFER, {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": [1]}]})
        far = (1 << 64) - 8
        where = {"shared_memory_region": "none", "shared_memory_byte_size": far, "shared_memory_offset": far}
        post(server, INFER, {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "parameters": where}]})
        small = [size for size in shape if -(1 << 63) <= size < 1 << 63]
        client.infer("identity_fp32", [Given("INPUT0", "FP32", small, bytes(4))])

    crowd(32, send)


@attack
def long_names(server):
    """models, versions, ids, inputs and regions that do not exist, with names of up to 200,000 letters"""
    name, client = "\x1b[31m\n" + "x" * 60_000, grpc_client(server.grpc)

    def send(at: int) -> None:
        path = "x" * 30_000
        post(server, f"/v2/models/{path}/versions/{path[:9000]}/infer", {"id": name, "inputs": ONE_INPUT})
        post(server, INFER, {"id": name, "inputs": [{"name": name, "datatype": name, "shape": [1], "data": [1]}]})
        post(server, INFER, {"inputs": ONE_INPUT, "outputs": [{"name": name, "parameters": {name: name}}]})
        ignoring_refusal(lambda: client.infer(3 * name, [fp32(name, [1])], version=name, id=name))
        ignoring_refusal(lambda: client.register_system(name, f"/{name}", 64))
        ignoring_refusal(lambda: client.load(name, {"config": name}))

    crowd(8, send)
    with open_session(server.session) as session:
        ignoring_refusal(lambda: session.infer(name, [fp32(name, [1])], id=name[:1000]))


def ignoring_refusal(act) -> None:
    """Further calls follow although this one is refused."""
    try:
        act()
    except Refused:
        pass


# ---------------------------------------------------------------------------------------------- compression


@attack
def bombs_over_http(server):
    """1 MB of gzip that inflates to 1 GiB, over HTTP"""
    headers = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": "10"}
    crowd(8, lambda _: post(server, INFER, bomb("gzip"), headers))


@attack
def bombs_over_grpc(server):
    """1 MB of gzip that inflates to 1 GiB, over gRPC"""

    def send(_) -> None:
        with open_connection(server.grpc) as connection:
            for stream in (1, 3, 5, 7):
                send_call(connection, stream, bomb("gzip"), encoding="gzip")
            received(connection, 0.5)

    crowd(4, send)


@attack
def answers_to_compress(server):
    """answers of 8 MiB that are to be compressed"""
    noise = random.Random(1).randbytes(8 << 20)
    headers = {"Accept-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head(len(noise))))}
    crowd(4, lambda _: post(server, INFER, head(len(noise)) + noise, headers))


# ---------------------------------------------------------------------------------------------- models


@attack
def a_loop_of_the_clients_length(server):
    """quick runs of a Loop, then one of as many rounds as take a second"""
    client = grpc_client(server.grpc)
    for trips in [1] * 20 + [TRIPS]:
        given = [Given("TRIPS", "INT64", [1], struct.pack("<q", trips)), fp32("INPUT0", np.zeros(4, np.float32))]
        client.infer("counted_loop", given)


@attack
def products_that_grow(server):
    """small matrix products, then ones of as many bytes whose result is a million times as large"""
    client = grpc_client(server.grpc)
    for rows, inner, columns in [(1, 2048, 1)] * 20 + [(2048, 1, 2048)] * 2 + [(300, 300, 300)] * 4:
        given = [fp32("LEFT", np.ones((rows, inner), np.float32)), fp32("RIGHT", np.ones((inner, columns), np.float32))]
        client.infer("product_sum", given)


@attack
def requests_that_nobody_waits_for(server):
    """a hundred requests to a slow model, all abandoned"""
    request = pb.ModelInferRequest(model_name="delayed", raw_input_contents=[bytes(4)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    body = {"inputs": ONE_INPUT}
    call = grpc_client(server.grpc).stub.ModelInfer.future
    for waiting in [call(request) for _ in range(100)]:
        waiting.cancel()
    crowd(4, lambda _: http_abandoned(server, json.dumps(body).encode()))


def http_abandoned(server, body: bytes) -> None:
    with connect(server.http) as one:
        one.sendall(f"POST /v2/models/delayed/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


# ---------------------------------------------------------------------------------------------- pages and loads


@attack
def pages(server):
    """the repository's index, statistics, metadata, settings, regions and metrics, again and again"""
    def look(at: int) -> None:
        post(server, "/v2/repository/index", {})
        for path in ("models/stats", "models/simple/config", "", "logging", "trace/setting", "systemsharedmemory/status"):
            http_call(server.http, "GET", f"/v2/{path}".rstrip("/"))
        if server.metrics:
            http_call(server.metrics, "GET", "/metrics")
        grpc_client(server.grpc).index()

    crowd(16, look)


@attack
def pages_side_by_side(server):
    """the repository's index and the statistics of all models, 100 calls of each at a time, from each of 8 threads"""
    def look(at: int) -> None:
        calls = [raw_call(server.grpc, method).future(b"", timeout=60) for method in ("RepositoryIndex", "ModelStatistics") for _ in range(100)]
        for call in calls:
            call.result()

    crowd(8, look)


@attack
def loads_that_are_refused(server):
    """loads with 200,000 parameters, with megabytes of broken files, and of models that are not there"""
    broken = base64.b64encode(random.Random(2).randbytes(6 << 20)).decode()
    config = json.dumps({"name": "x", "backend": "onnxruntime"})
    bodies = [
        b'{"parameters":{' + b",".join(b'"file:%d":""' % n for n in range(200_000)) + b"}}",
        json.dumps({"parameters": {"config": config, "file:1/model.onnx": broken}}).encode(),
        json.dumps({"parameters": {"config": "x" * (4 << 20)}}).encode(),
        b"{}",
    ]
    crowd(8, lambda at: post(server, f"/v2/repository/models/none{at}/load", bodies[at % len(bodies)]))
    request = pb.RepositoryModelLoadRequest(model_name="none")
    for n in range(20_000):
        request.parameters[f"file:{n}"].bytes_param = b""
    request.parameters["config"].CopyFrom(pb.ModelRepositoryParameter(string_param=config))
    grpc_bytes(server, "RepositoryModelLoad", request.SerializeToString())
