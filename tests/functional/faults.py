"""Does the server outlive what broken and hostile clients do to it, and give back all they took?"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import socket
import struct
import threading
import time

import grpc
import pytest
from catalogue import SLOW_MS
from clients import (
    TIMEOUT_S, Asked, Given, GrpcClient, HttpClient, Refused, differs, fp32, grpc_channel, http_call, http_infer, open_client,
    pb,
)  # fmt: skip
from meanwhile import Delay, again_if_too_late
from regions import fresh_name, region, registered

REFUSALS = 10_000
BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode()


@pytest.fixture(scope="module")
def victims(launcher):
    """Starts another server for these tests whenever one has not survived the last test."""
    repository = launcher.copy_of("victim", "identity_fp32", "identity_bytes", "slow_fp32", "simple", "mixed")
    with contextlib.ExitStack() as held:
        found = []

        def alive():
            if not found or found[-1].process.poll() is not None:
                name = f"victim_{len(found)}"
                found.append(held.enter_context(launcher.running(name, repository=repository)))
            return found[-1]

        yield alive


@pytest.fixture
def victim(victims):
    """A server that only these tests may hurt."""
    return victims()


@pytest.fixture(autouse=True)
def unharmed(victim):
    """After each test the same process still answers."""
    yield
    assert victim.process.poll() is None, f"the server died:\n{victim.log_text()[-3000:]}"
    answer = http_infer(victim.http, "identity_fp32", BODY).ok()
    assert answer.json["outputs"][0]["data"] == [1, 2]


def descriptors(pid: int) -> list[str]:
    """What the open descriptors point to, without sockets and event objects, which come and go."""
    found = []
    for one in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{one}"))
    return [one for one in found if not one.startswith(("socket:", "anon_inode:"))]


def mappings(pid: int, key: str) -> int:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return sum(key.strip("/") in line for line in maps)


def resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/statm", encoding="utf-8") as facts:
        return int(facts.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


# ---------------------------------------------------------------------------------------------- registrations


def refused_registrations(key: str):
    """One round of bodies, each refused for another reason."""
    return [
        {"key": "/nerite_no_such_object", "byte_size": 64, "offset": 0},
        {"key": key, "byte_size": 2**40, "offset": 0},
        {"key": key, "byte_size": 64, "offset": 2**40},
        {"key": key, "byte_size": 64, "offset": 1},
        {"key": key, "byte_size": 0, "offset": 0},
        {"key": key, "byte_size": 2**64 - 4096, "offset": 4096},
        {"key": "///", "byte_size": 64, "offset": 0},
        {"key": "/a/b", "byte_size": 64, "offset": 0},
        {"key": 5, "byte_size": 64, "offset": 0},
        {"key": key},
    ]


@differs("2.51 keeps the descriptor of each object whose size was too small")
def test_refused_registrations_over_http_leave_nothing_behind(victim):
    with region(4096) as made:
        rounds = refused_registrations(made.key)
        connection = http.client.HTTPConnection(victim.http, timeout=TIMEOUT_S)
        before = sorted(descriptors(victim.pid))
        for number in range(REFUSALS):
            body = json.dumps(rounds[number % len(rounds)])
            connection.request("POST", f"/v2/systemsharedmemory/region/{fresh_name()}/register", body)
            answer = connection.getresponse()
            answer.read()
            assert answer.status in (400, 500)
        connection.close()
        assert sorted(descriptors(victim.pid)) == before
        assert mappings(victim.pid, made.key) == 0


@differs("2.51 keeps the descriptor of each object whose size was too small")
def test_refused_registrations_over_grpc_leave_nothing_behind(victim):
    with region(4096) as made, open_client("grpc", victim) as client:
        rounds = [one for one in refused_registrations(made.key) if isinstance(one["key"], str) and "byte_size" in one]
        before = sorted(descriptors(victim.pid))
        for number in range(REFUSALS):
            with pytest.raises(Refused):
                client.register_system(fresh_name(), **rounds[number % len(rounds)])
        assert sorted(descriptors(victim.pid)) == before
        assert mappings(victim.pid, made.key) == 0


def test_registering_and_unregistering_leaves_nothing_behind(victim):
    with open_client("grpc", victim) as client:
        before = sorted(descriptors(victim.pid))
        for _ in range(500):
            with registered(client, 4096) as made:
                assert mappings(victim.pid, made.key) == 1
            assert mappings(victim.pid, made.key) == 0
        assert sorted(descriptors(victim.pid)) == before


# ---------------------------------------------------------------------------------------------- regions that shrink

KILLED = "a client that truncates its region kills 2.51 (SIGBUS)"


@differs(KILLED, run=False)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("left", [0, 4096])
def test_a_truncated_region_fails_its_own_request_only(victim, protocol, side, left):
    size = 1 << 20
    with open_client(protocol, victim) as client, registered(client, size) as bad, registered(client, size) as good:
        os.truncate(bad.path, left)
        where = (bad.name, size, 0)
        count = size // 4
        with pytest.raises(Refused) as caught:
            if side == "input":
                client.infer("identity_fp32", [Given("INPUT0", "FP32", [count], region=where)])
            else:
                given = Given("INPUT0", "FP32", [count], region=(good.name, size, 0))
                client.infer("identity_fp32", [given], [Asked("OUTPUT0", where)])
        assert bad.name in caught.value.text
        good.write(fp32("", [7]).raw)
        given = Given("INPUT0", "FP32", [1], region=(good.name, 4, 0))
        assert client.infer("identity_fp32", [given], [Asked("OUTPUT0", (good.name, 4, 8))])
        assert good.read(4, 8) == fp32("", [7]).raw


@differs(KILLED, run=False)
@again_if_too_late
def test_a_region_truncated_while_the_model_runs(victim):
    size = 1 << 20
    with open_client("http", victim) as client, registered(client, size) as bad:
        given = Given("INPUT0", "FP32", [size // 8], region=(bad.name, size // 2, 0))
        asked = [Asked("OUTPUT0", (bad.name, size // 2, size // 2))]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            delay = Delay(SLOW_MS)
            running = pool.submit(client.infer, "slow_fp32", [given], asked)
            delay.reaches(victim, "slow_fp32")
            os.truncate(bad.path, 0)
            delay.must_last()
            assert isinstance(running.exception(), Refused)


@differs(KILLED, run=False)
def test_strings_in_a_truncated_region(victim):
    with open_client("grpc", victim) as client, registered(client, 8192, struct.pack("<I", 4) + b"abcd") as bad:
        os.truncate(bad.path, 0)
        with pytest.raises(Refused):
            client.infer("identity_bytes", [Given("INPUT0", "BYTES", [1], region=(bad.name, 8, 0))])


def test_string_lengths_that_change_under_the_servers_eyes(victim):
    """A writer flips a length word all the time; each answer is right or refused, and never a crash."""
    good, bad = struct.pack("<I", 4), struct.pack("<I", 2**32 - 1)
    with open_client("grpc", victim) as client, registered(client, 4096, (good + b"abcd") * 64) as made:
        stop = threading.Event()

        def flip():
            while not stop.is_set():
                made.write(bad, 8 * 40)
                made.write(good, 8 * 40)

        writer = threading.Thread(target=flip)
        writer.start()
        try:
            for _ in range(300):
                with contextlib.suppress(Refused):
                    client.infer("identity_bytes", [Given("INPUT0", "BYTES", [64], region=(made.name, 512, 0))])
        finally:
            stop.set()
            writer.join()


def test_registering_and_inferring_race(victim):
    """Threads pull regions from under each other; every answer is the right one or an ordinary refusal."""
    names = [fresh_name() for _ in range(4)]

    def work(seed: int) -> int:
        chance = random.Random(seed)
        done = 0
        with open_client("grpc" if seed % 2 else "http", victim) as client, region(4096, fp32("", [5]).raw) as made:
            for _ in range(150):
                name = chance.choice(names)
                with contextlib.suppress(Refused):
                    match chance.randrange(4):
                        case 0:
                            client.register_system(name, made.key, 4096)
                        case 1:
                            client.unregister("system", name)
                        case 2:
                            client.status("system")
                        case 3:
                            given = Given("INPUT0", "FP32", [1], region=(name, 4, 0))
                            assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == fp32("", [5]).raw
                            done += 1
            for name in names:
                with contextlib.suppress(Refused):
                    client.unregister("system", name)
        return done

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) > 0
    with open_client("http", victim) as client:
        client.unregister("system")
        assert client.status("system") == []


# ---------------------------------------------------------------------------------------------- malformed bodies


def mutants(good: bytes, count: int, seed: int):
    """The same body damaged in one to four places: bytes changed, cut, doubled or put in."""
    chance = random.Random(seed)
    for _ in range(count):
        made = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(made) + 1)
            match chance.randrange(5):
                case 0 if at < len(made):
                    made[at] = chance.randrange(256)
                case 1:
                    del made[at : at + chance.randint(1, 8)]
                case 2:
                    made[at:at] = made[at : at + chance.randint(1, 16)]
                case 3:
                    made[at:at] = chance.choice([b"{", b"}", b"[", b"]", b'"', b",", b"null", b"-1", b"1e99", b"\\u0000", b"\xff"])
                case _:
                    made = made[: at or 1]
            if not made:
                made = bytearray(b"x")
        yield bytes(made)


def test_damaged_json_is_answered(victim):
    document = json.dumps(
        {
            "id": "x",
            "parameters": {"sequence_id": 0, "mine": 1.5, "binary_data_output": True},
            "inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [[1.5], [2e3]]},
                {"name": "INPUT1", "datatype": "BYTES", "shape": [1], "data": ["text\u00e9"]},
                {"name": "INPUT2", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}},
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": False, "classification": 1}}],
        }
    ).encode()
    connection = http.client.HTTPConnection(victim.http, timeout=TIMEOUT_S)
    seen = set()
    for body in mutants(document, 1500, 1):
        headers = {"Inference-Header-Content-Length": str(len(body))}
        connection.request("POST", "/v2/models/mixed/infer", body + bytes(4), headers)
        answer = connection.getresponse()
        text = answer.read()
        seen.add(answer.status)
        assert answer.status in (200, 400, 500, 501)
        # A name that is no UTF-8 comes back as it was sent.
        assert answer.status == 200 or json.loads(text.decode(errors="replace"))["error"]
    assert {400, 500} <= seen


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("/v2/systemsharedmemory/region/r/register", {"key": "/x", "offset": 0, "byte_size": 64}),
        ("/v2/cudasharedmemory/region/r/register", {"raw_handle": {"b64": "A" * 88}, "device_id": 0, "byte_size": 64}),
        ("/v2/repository/index", {"ready": True}),
        ("/v2/repository/models/nobody/load", {"parameters": {"config": "{}", "file:1/x": "AAAA"}}),
        ("/v2/trace/setting", {"trace_rate": "1000", "trace_level": ["OFF"]}),
        ("/v2/logging", {"log_info": True, "log_verbose_level": 0}),
        ("/v2/models/identity_fp32/generate", {"INPUT0": [1, 2], "parameters": {"x": 1}}),
    ],
)
def test_damaged_bodies_of_other_calls(victim, path, good):
    for body in mutants(json.dumps(good).encode(), 150, 2):
        assert 200 <= http_call(victim.http, "POST", path, body).status < 600
    http_call(victim.http, "POST", "/v2/logging", {"log_info": True, "log_verbose_level": 0, "log_format": "default"})


def test_damaged_messages_are_answered(victim):
    with grpc_channel(victim.grpc) as channel:
        good = GrpcClient(channel).request(
            "identity_fp32", [fp32("INPUT0", [1, 2])], [Asked("OUTPUT0")], id="x", parameters={"mine": 1}
        )
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for body in mutants(good.SerializeToString(), 1500, 3):
            with contextlib.suppress(grpc.RpcError):
                call(body, timeout=TIMEOUT_S)


# ---------------------------------------------------------------------------------------------- clients that vanish

LARGE = 64 << 20


def head(length: int, size: int) -> tuple[bytes, bytes]:
    document = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [size // 4], "parameters": {"binary_data_size": size}}]}
    ).encode()
    lines = (
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(document), len(document) + length)
    )
    return lines, document


def connected(url: str) -> socket.socket:
    host, _, port = url.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def test_a_client_that_vanishes_in_the_middle_of_a_large_body(victim):
    lines, document = head(LARGE, LARGE)
    before = len(os.listdir(f"/proc/{victim.pid}/fd"))
    for part in (0, 1, 1000, LARGE // 4, LARGE // 2, LARGE - 1):
        with connected(victim.http) as gone:
            gone.sendall(lines + document + bytes(part))
            if part % 2:
                # An abrupt end, without the farewell.
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: len(os.listdir(f"/proc/{victim.pid}/fd")) <= before + 2)


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.05)


def test_large_bodies_that_never_end_do_not_pile_up(victim):
    """Twenty times 16 MiB of half a request, one after the other: nothing of it may stay."""
    lines, document = head(LARGE, LARGE)
    for _ in range(3):
        with connected(victim.http) as gone:
            gone.sendall(lines + document + bytes(LARGE // 4))
    before = resident_mib(victim.pid)
    for _ in range(20):
        with connected(victim.http) as gone:
            gone.sendall(lines + document + bytes(LARGE // 4))
    # The server hears of the last of them when it gets round to it.
    wait_until(lambda: resident_mib(victim.pid) < before + 128)


def test_grpc_calls_cancelled_in_the_middle_of_a_large_message(victim):
    request = pb.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[bytes(LARGE)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[LARGE // 4])
    for pause in (0.0, 0.005, 0.02):
        with grpc_channel(victim.grpc) as channel:
            future = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer", request_serializer=pb.ModelInferRequest.SerializeToString
            ).future(request)
            time.sleep(pause)
            future.cancel()


def test_a_client_that_never_reads_its_answer(victim):
    document = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [LARGE // 8], "parameters": {
        "binary_data_size": LARGE // 2}}], "parameters": {"binary_data_output": True}}).encode()  # fmt: skip
    lines = (
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: %d\r\n"
        b"Content-Length: %d\r\n\r\n" % (len(document), len(document) + LARGE // 2)
    )
    with connected(victim.http) as lazy:
        lazy.sendall(lines + document + bytes(LARGE // 2))
        http_infer(victim.http, "identity_fp32", BODY).ok()


def test_slow_clients_do_not_keep_others_out(victim):
    with contextlib.ExitStack() as held:
        for _ in range(200):
            slow = held.enter_context(connected(victim.http))
            slow.sendall(b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nContent-Le")
        for _ in range(20):
            http_infer(victim.http, "identity_fp32", BODY).ok()


# ---------------------------------------------------------------------------------------------- beyond every limit


def one(**changes) -> dict:
    return {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]} | changes]}


ABORTS = differs("a JSON shape of this size ends 2.51 with an uncaught length_error", run=False)
OVERSIZED = [
    one(shape=[1] * 100_000),
    one(name="x" * 10_000_000),
    one(datatype="x" * 10_000_000),
    pytest.param(one(shape=[2**63 - 1]), marks=ABORTS),
    pytest.param(one(shape=[2**64 - 1]), marks=ABORTS),
    one(shape=[2**40, 2**40]),
    {"inputs": one()["inputs"] * 50_000},
    one() | {"outputs": [{"name": f"OUTPUT{number}"} for number in range(50_000)]},
    one() | {"parameters": {f"k{number}": number for number in range(100_000)}},
    one(data=[1] * 2_000_000),
]


@pytest.mark.parametrize("document", OVERSIZED)
def test_oversized_documents_are_answered(victim, document):
    answer = http_infer(victim.http, "identity_fp32", document)
    assert answer.status in (200, 400, 500)
    assert answer.status == 200 or answer.error


@differs("2.51 reads JSON without a bound on its depth", run=False)
@pytest.mark.parametrize("text", ["[" * 5_000_000, '{"a":' * 2_000_000, "[" * 2_000_000 + "]" * 2_000_000])
def test_bottomless_documents_are_answered(victim, text):
    for path in ("/v2/models/identity_fp32/infer", "/v2/models/identity_fp32/generate"):
        assert http_call(victim.http, "POST", path, text).status in (400, 500)
    # A list has no settings to change, however deep it is.
    assert http_call(victim.http, "POST", "/v2/logging", text).status in (200, 400, 500)


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 4611686018427387904\r\n\r\n" + b"x" * 4096,
    ],
)
def test_oversized_heads_are_refused_or_dropped(victim, request_head):
    with connected(victim.http) as wire, contextlib.suppress(OSError):
        wire.settimeout(2)
        wire.sendall(request_head)
        wire.recv(4096)


def test_a_body_announced_beyond_an_int_is_refused(victim):
    with connected(victim.http) as wire:
        wire.sendall(
            b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: 2147483648\r\n\r\n"
        )
        wire.settimeout(2)
        before = resident_mib(victim.pid)
        with contextlib.suppress(OSError):
            wire.recv(4096)
        # Nothing is set aside for what was only announced.
        assert resident_mib(victim.pid) < before + 256


def test_many_requests_on_one_connection_leave_nothing_behind(victim):
    connection = http.client.HTTPConnection(victim.http, timeout=TIMEOUT_S)

    def ask(count: int):
        for _ in range(count):
            connection.request("POST", "/v2/models/nobody/infer", BODY)
            connection.getresponse().read()

    ask(500)
    before, held = resident_mib(victim.pid), len(os.listdir(f"/proc/{victim.pid}/fd"))
    ask(5000)
    wait_until(lambda: resident_mib(victim.pid) < before + 16)
    wait_until(lambda: len(os.listdir(f"/proc/{victim.pid}/fd")) <= held + 2)


def test_clients_agree_after_all_this(victim):
    with open_client("http", victim) as first, open_client("grpc", victim) as second:
        assert isinstance(first, HttpClient) and isinstance(second, GrpcClient)
        for name in ("identity_fp32", "simple"):
            assert first.statistics(name)[0]["inference_count"] == second.statistics(name)[0]["inference_count"]
