"""Does a backend in Rust, made with nerite-backend-sdk, answer here as it does in Triton, from the same library?"""

import concurrent.futures
import shutil

import numpy as np
import pytest
from clients import Given, RequestedOutput, fp32, http_call, open_client, refuses, text
from compiled_setup import errors
from regions import registered
from servers import DEVELOPMENT_BUILD, nerite_binary

TENSOR = '{ name: "%s" data_type: TYPE_%s dims: [ -1 ] }'
SIZE = 1 << 20
# A batch is complete with this many requests, and nothing else ends the wait for it.
JOINED = 4
JOINS = f"max_batch_size: {JOINED}\ndynamic_batching {{ preferred_batch_size: [ {JOINED} ] max_queue_delay_microseconds: 600000000 }}"


def put(repository, name: str, datatype: str = "FP32", pairs: int = 2, parameter: str = "", more: str = "") -> None:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    lines = ['backend: "rust_identity"', more]
    for side, stem in (("input", "INPUT"), ("output", "OUTPUT")):
        lines.append(f"{side} [" + ", ".join(TENSOR % (f"{stem}{number}", datatype) for number in range(pairs)) + "]")
    if parameter:
        lines.append(f'parameters {{ key: "{parameter}" value {{ string_value: "1" }} }}')
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n")


def build(backends) -> None:
    library = backends / "rust_identity" / "libtriton_rust_identity.so"
    library.parent.mkdir(parents=True)
    shutil.copy(DEVELOPMENT_BUILD / library.name, library)


@pytest.fixture(scope="module")
def rust_server(launcher):
    backends, repository = launcher.scratch / "rust_backends", launcher.scratch / "rust"
    build(backends)
    put(repository, "r_identity")
    put(repository, "r_batched", more="max_batch_size: 8\ndynamic_batching {}")
    put(repository, "r_text", datatype="STRING")
    put(repository, "r_instances", more="instance_group { kind: KIND_CPU count: 3 }")
    for parameter in ("", "fail", "panic"):
        put(repository, f"r_joined_{parameter or 'well'}", parameter=parameter, more=JOINS)
    for parameter in ("fail", "panic", "refuse", "short"):
        put(repository, f"r_{parameter}", parameter=parameter)
    flags = [f"--backend-directory={backends}", "--exit-on-error=false"]
    with launcher.running("rust", *flags, repository=repository) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def rust_client(request: pytest.FixtureRequest, rust_server):
    with open_client(request.param, rust_server) as found:
        yield found


def numbers(reply, output: str) -> list[float]:
    return np.frombuffer(reply.outputs[output].raw, np.float32).tolist()


def pair(first, second) -> list[Given]:
    return [fp32("INPUT0", first), fp32("INPUT1", second)]


@pytest.mark.parametrize("model", ["r_identity", "r_instances"])
def test_inputs_come_back(rust_client, model):
    reply = rust_client.infer(model, pair([1, 2, 3], [4]), id="42")
    assert (numbers(reply, "OUTPUT0"), numbers(reply, "OUTPUT1"), reply.id) == ([1, 2, 3], [4], "42")


def test_rows_and_strings_come_back(rust_client):
    reply = rust_client.infer("r_batched", pair([[1, 2], [3, 4]], [[5], [6]]))
    assert (numbers(reply, "OUTPUT0"), reply.outputs["OUTPUT0"].shape) == ([1, 2, 3, 4], [2, 2])
    strings = [b"a", b"", b"bc" * 1000]
    reply = rust_client.infer("r_text", [text("INPUT0", strings), text("INPUT1", [b"x"])])
    assert (reply.outputs["OUTPUT0"].raw, reply.outputs["OUTPUT1"].raw) == (text("", strings).raw, text("", [b"x"]).raw)


def test_only_wanted_outputs_come_and_empty_tensors_do(rust_client):
    reply = rust_client.infer("r_identity", pair([1, 2], [3]), [RequestedOutput("OUTPUT1")])
    assert (list(reply.outputs), numbers(reply, "OUTPUT1")) == (["OUTPUT1"], [3])
    reply = rust_client.infer("r_identity", [Given("INPUT0", "FP32", [0]), fp32("INPUT1", [4])])
    assert (reply.outputs["OUTPUT0"].shape, numbers(reply, "OUTPUT1")) == ([0], [4])


def test_an_error_has_the_backends_text_and_a_panic_costs_its_request_alone(rust_server, rust_client):
    with refuses("INVALID_ARG", "request 'r7' fails on purpose"):
        rust_client.infer("r_fail", pair([1], [2]), id="r7")
    for _ in range(3):
        with refuses("INTERNAL", "the backend panicked"):
            rust_client.infer("r_panic", pair([1], [2]))
    assert "the backend panicked: on purpose" in rust_server.log_text()
    assert numbers(rust_client.infer("r_identity", pair([1], [2])), "OUTPUT1") == [2]


def test_an_output_that_is_not_written_is_an_error(rust_client):
    with refuses("INTERNAL", "output 'OUTPUT0' lacks its last 4 bytes"):
        rust_client.infer("r_short", pair([1], [2]))


def test_a_model_that_the_backend_refuses_says_why(rust_client):
    (only,) = [one for one in rust_client.index() if one["name"] == "r_refuse"]
    assert only["state"] == "UNAVAILABLE" and "model r_refuse is refused on purpose" in only["reason"]


def test_statistics_count_requests_and_failures(rust_client):
    def counts(model: str) -> list[int]:
        (one,) = rust_client.statistics(model)
        return [int(one["inference_stats"][kind]["count"]) for kind in ("success", "fail")]

    before = counts("r_identity"), counts("r_fail")
    for _ in range(3):
        rust_client.infer("r_identity", pair([1], [2]))
    with refuses("INVALID_ARG", "request '' fails on purpose"):
        rust_client.infer("r_fail", pair([1], [2]))
    (success, fail), (none, failed) = before
    # The response is sent before the request is counted.
    for _ in range(1000):
        if (counts("r_identity"), counts("r_fail")) == ([success + 3, fail], [none, failed + 1]):
            return
    raise AssertionError((before, counts("r_identity"), counts("r_fail")))


def at_once(protocol: str, server, count: int, infer) -> list:
    """Calls `infer` with the numbers below `count` at the same time, each with a client of its own. Returns the results in order."""

    def one(at: int):
        with open_client(protocol, server) as client:
            return infer(client, at)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def batches(client, model: str) -> dict:
    """How many requests succeeded and failed, and how many batches of each size ran."""
    (one,) = client.statistics(model)
    stats = one["inference_stats"]
    sizes = {int(each["batch_size"]): int(each["compute_infer"]["count"]) for each in one["batch_stats"]}
    counts = {key: int(stats[key]["count"]) for key in ("success", "fail")}
    return counts | {"rows": int(one["inference_count"]), "runs": int(one["execution_count"]), "sizes": sizes}


def after_a_batch(before: dict, **found: int) -> dict:
    """The statistics after another batch of `JOINED` requests. `found` says by how much the counts of requests and rows grow."""
    expected = before | {key: before[key] + count for key, count in found.items()}
    return expected | {"runs": before["runs"] + 1, "sizes": {JOINED: before["sizes"].get(JOINED, 0) + 1}}


def wait_for_statistics(client, model: str, expected: dict) -> None:
    # The responses are sent before the batch is counted.
    for _ in range(1000):
        if batches(client, model) == expected:
            return
    assert batches(client, model) == expected


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_each_of_many_requests_gets_its_own_inputs(rust_server, protocol):
    def infer(client, at: int) -> list:
        replies = [client.infer("r_instances", pair([at, n], [n]), id=f"{at}_{n}") for n in range(20)]
        return [(numbers(one, "OUTPUT0"), numbers(one, "OUTPUT1"), one.id) for one in replies]

    expected = [[([at, n], [n], f"{at}_{n}") for n in range(20)] for at in range(8)]
    assert at_once(protocol, rust_server, 8, infer) == expected


def test_requests_of_one_batch_get_their_own_answers_and_count_as_one_run(rust_client, rust_server):
    before = batches(rust_client, "r_joined_well")
    found = at_once(rust_client.protocol, rust_server, JOINED, lambda client, at: client.infer("r_joined_well", pair([[at, 7]], [[-at]])))
    assert [(numbers(one, "OUTPUT0"), numbers(one, "OUTPUT1")) for one in found] == [([at, 7], [-at]) for at in range(JOINED)]
    wait_for_statistics(rust_client, "r_joined_well", after_a_batch(before, success=JOINED, rows=JOINED))


def test_requests_of_one_batch_keep_to_their_own_memory(rust_client, rust_server):
    before, row = batches(rust_client, "r_joined_well"), SIZE // JOINED
    content = np.arange(SIZE // 4, dtype=np.float32).tobytes()
    with registered(rust_client, 2 * SIZE, content) as made:

        def infer(client, at: int) -> None:
            given = [Given("INPUT0", "FP32", [1, row // 4], region=(made.name, row, at * row)), fp32("INPUT1", [[1]])]
            client.infer("r_joined_well", given, [RequestedOutput("OUTPUT0", (made.name, row, SIZE + at * row))])

        at_once(rust_client.protocol, rust_server, JOINED, infer)
        assert made.read(SIZE, SIZE) == content
    wait_for_statistics(rust_client, "r_joined_well", after_a_batch(before, success=JOINED, rows=JOINED))


@pytest.mark.parametrize(("model", "code", "text"), [
    ("r_joined_fail", "INVALID_ARG", "request 'r{}' fails on purpose"),
    ("r_joined_panic", "INTERNAL", "the backend panicked"),
])  # fmt: skip
def test_each_request_of_a_batch_fails_by_itself(rust_client, rust_server, model, code, text):
    def infer(client, at: int) -> None:
        with refuses(code, text.format(at)):
            client.infer(model, pair([[1]], [[2]]), id=f"r{at}")

    before = batches(rust_client, model)
    at_once(rust_client.protocol, rust_server, JOINED, infer)
    wait_for_statistics(rust_client, model, after_a_batch(before, fail=JOINED))


def test_tensors_lie_in_regions_and_nothing_else_is_copied(rust_server, rust_client):
    def copied() -> int:
        lines = http_call(rust_server.metrics, "GET", "/metrics").body.decode().splitlines()
        return sum(int(line.split()[-1]) for line in lines if line.startswith("nerite_copied_bytes_total{"))

    content = np.arange(SIZE // 4, dtype=np.float32).tobytes()
    with registered(rust_client, 2 * SIZE, content) as made:
        before = None if rust_server.oracle else copied()
        given = [Given("INPUT0", "FP32", [1, SIZE // 4], region=(made.name, SIZE, 0)), fp32("INPUT1", [[1]])]
        rust_client.infer("r_batched", given, [RequestedOutput("OUTPUT0", (made.name, SIZE, SIZE))])
        assert made.read(SIZE, SIZE) == content
        if before is not None:
            assert copied() - before < 1000
        with refuses("INTERNAL", "shared memory size specified with the request for output 'OUTPUT0'"):
            rust_client.infer("r_batched", given, [RequestedOutput("OUTPUT0", (made.name, SIZE - 4, SIZE))])


def test_the_log_has_no_error_but_those_on_purpose(rust_server):
    if not rust_server.oracle:
        assert [line for line in errors(rust_server) if "on purpose" not in line] == []


def test_a_backend_beside_the_program_is_found(launcher, monkeypatch):
    if launcher.oracle:
        pytest.skip("Triton looks in its own directory")
    folder, repository = launcher.scratch / "program", launcher.scratch / "rust_beside"
    build(folder / "backends")
    shutil.copy(nerite_binary(), folder / "nerite")
    put(repository, "r_identity")
    monkeypatch.setenv("NERITE_BIN", str(folder / "nerite"))
    with launcher.running("rust_beside", repository=repository) as server, open_client("http", server) as client:
        assert numbers(client.infer("r_identity", pair([1], [2])), "OUTPUT1") == [2]
        assert str(folder / "backends" / "rust_identity") in server.log_text()
