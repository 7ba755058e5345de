"""May a backend in C ask other models, and does it hear the same here as in Triton?"""

import concurrent.futures
import time

import numpy as np
import pytest
from clients import Given, RequestedOutput, fp32, grpc_channel, http_call, int32, open_client, refuses, text
from compiled_setup import errors, put, serving
from regions import registered
from test_decoupled import Stream

DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module", params=["server", "process"])
def calling_server(request: pytest.FixtureRequest, launcher):
    """In the server's process, and each instance in a process of its own."""
    is_isolated = request.param == "process"
    if is_isolated and launcher.oracle:
        pytest.skip("Triton has no isolated backends")
    name = "isolated_asking" if is_isolated else "asking"
    repository = launcher.scratch / name
    settings = {"backend": "asking"}
    # Instances in processes of their own count for themselves.
    put(repository, "asking", more=f"instance_group {{ kind: KIND_CPU count: {1 if is_isolated else 4} }}", **settings)
    put(repository, "asking_two", pairs=2, **settings)
    put(repository, "asking_text", datatype="STRING", **settings)
    put(repository, "asking_repeat", datatype="INT32", more=DECOUPLED, **settings)
    put(repository, "asking_leak", **settings, leak_response="yes")
    put(repository, "c_identity")
    put(repository, "c_add_sub", "add_sub", pairs=2)
    put(repository, "c_text", datatype="STRING")
    put(repository, "c_tell", "tell")
    put(repository, "c_fail", "fail")
    put(repository, "c_refuse", "refuse")
    put(repository, "c_throw_away", "throw_away")
    put(repository, "c_repeat", "repeat", datatype="INT32", more=DECOUPLED)
    put(repository, "c_extra")
    flags = ["--model-control-mode=explicit", "--load-model=*", *(["--backend-config=isolated=true"] if is_isolated else [])]
    with serving(launcher, name, repository, *flags, sources=("sample", "asking")) as found:
        found.is_isolated = is_isolated
        yield found


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, calling_server):
    with open_client(request.param, calling_server) as found:
        yield found


def numbers(reply, output: str = "OUT") -> list[float]:
    return np.frombuffer(reply.outputs[output].raw, np.float32).tolist()


def counts(client, model: str = "asking") -> dict:
    return dict(client.infer(model, [fp32("IN", [0])] + [fp32("IN1", [0])] * (model == "asking_two")).parameters)


def settled(client, model: str = "asking") -> dict:
    """The counts, once they do not change any more: memory goes back a moment after the answer."""
    deadline, last = time.monotonic() + 30, None
    while (found := counts(client, model)) != last:
        assert time.monotonic() < deadline, found
        last = found
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("wait", [0, 1])
@pytest.mark.parametrize("parts", [1, 3])
def test_another_model_answers(client, wait, parts):
    wish = {"target": "c_identity", "wait": wait, "parts": parts, "id": "mine"}
    reply = client.infer("asking", [fp32("IN", [1, 2, 3])], parameters=wish)
    assert numbers(reply) == [1, 2, 3]
    found = dict(reply.parameters)
    assert {key: found[key] for key in ("asked_model", "asked_version", "asked_id")} == \
        {"asked_model": "c_identity", "asked_version": 1, "asked_id": "mine"}  # fmt: skip
    large = np.random.default_rng(5).random(100_000, np.float32)
    assert numbers(client.infer("asking", [fp32("IN", large)], parameters=wish)) == large.tolist()


def test_strings_and_empty_tensors_pass(client):
    words = text("IN", [b"a", b"", b"bc" * 1000])
    assert client.infer("asking_text", [words], parameters={"target": "c_text"}).outputs["OUT"].raw == words.raw
    reply = client.infer("asking", [Given("IN", "FP32", [0])], parameters={"target": "c_identity"})
    assert reply.outputs["OUT"].shape == [0]


def test_only_wanted_outputs_are_made(client):
    given = [fp32("IN", [5, 7]), fp32("IN1", [1, 2])]
    reply = client.infer("asking_two", given, parameters={"target": "c_add_sub"})
    assert (numbers(reply), numbers(reply, "OUT1")) == ([6, 9], [4, 5])
    reply = client.infer("asking_two", given, [RequestedOutput("OUT1")], parameters={"target": "c_add_sub", "wanted": "OUT1"})
    assert (list(reply.outputs), numbers(reply, "OUT1")) == (["OUT1"], [4, 5])
    found = settled(client, "asking_two")
    assert (found["allocated"], found["requests"]) == (found["freed"], found["released"])


def test_the_other_model_sees_the_request(calling_server, client):
    wish = {"target": "c_tell", "id": "r7", "sequence": 9}
    found = dict(client.infer("asking", [fp32("IN", [1])], parameters=wish).parameters)
    expected = {"id": "r7", "sequence": 9, "flags": 1, "got_said": "by asking", "got_count": 7, "got_yes": True}
    assert {key: found[key] for key in expected} == expected
    # It asked where its output will lie, which the asking backend's function says.
    assert found["out_kind"] == 0
    # From a process of its own the output lies in the server's memory first.
    assert calling_server.is_isolated or counts(client)["queried"] > 0


REFUSALS = [
    ("c_fail", "INVALID_ARG", "fails on purpose"),
    ("c_refuse", "UNAVAILABLE", "the batch is refused on purpose"),
    ("nobody", "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
    ("c_add_sub", "INVALID_ARG", "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'c_add_sub'"),
    ("c_text", "INVALID_ARG", "[request id: <id_unknown>] inference input 'IN' data-type is 'FP32', but model 'c_text' expects 'BYTES'"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "code", "why"), REFUSALS)
def test_errors_of_the_other_model_are_heard(client, target, code, why):
    for wait in (0, 1):
        with refuses(code, why):
            client.infer("asking", [fp32("IN", [1])], parameters={"target": target, "wait": wait})
    assert numbers(client.infer("asking", [fp32("IN", [1])], parameters={"target": "c_identity"})) == [1]


def test_many_requests_side_by_side_and_all_is_given_back(calling_server):
    with open_client("http", calling_server) as client:
        before = settled(client)

        def one(n: int) -> bool:
            with open_client("grpc" if n % 2 else "http", calling_server) as mine:
                wish = {"target": "c_identity", "wait": n % 2, "parts": 1 + n % 3}
                return all(numbers(mine.infer("asking", [fp32("IN", [n, at])], parameters=wish)) == [n, at] for at in range(25))

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert all(pool.map(one, range(8)))
        after = settled(client)
    made = {key: after[key] - before[key] for key in ("allocated", "freed", "started", "requests", "released", "responses")}
    assert made == dict.fromkeys(made, 200)


@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_a_decoupled_model_answers_many_times(calling_server, count):
    with grpc_channel(calling_server.grpc) as channel:
        stream = Stream(channel)
        parameters = {"triton_enable_empty_final_response": True, "target": "c_repeat"}
        stream.sent.put(stream.client.request("asking_repeat", [int32("IN", list(range(count)))], None, id="r", parameters=parameters))
        found, is_last = [], False
        while not is_last:
            message = next(stream.call)
            assert message.error_message == ""
            found += [np.frombuffer(raw, np.int32)[0] for raw in message.infer_response.raw_output_contents]
            is_last = message.infer_response.parameters["triton_final_response"].bool_param
        stream.sent.put(None)
    assert found == list(range(count))


def test_an_input_in_a_region_goes_on_as_it_is(client):
    values = np.arange(1024, dtype=np.float32)
    with registered(client, 8192, values.tobytes()) as made:
        given = [Given("IN", "FP32", [1024], region=(made.name, 4096, 0))]
        client.infer("asking", given, [RequestedOutput("OUT", (made.name, 4096, 4096))], parameters={"target": "c_identity"})
        assert made.read(4096, 4096) == values.tobytes()


def test_a_backend_looks_at_models_and_controls_them(client):
    def control(what: str, target: str, **more) -> dict:
        return dict(client.infer("asking", [fp32("IN", [0])], parameters={"control": what, "target": target} | more).parameters)

    assert {"is_ready": True, "transactions": 1, "batches": 1}.items() <= control("look", "c_identity").items()
    assert control("look", "c_repeat")["transactions"] == 2
    assert control("look", "nobody")["is_ready"] is False
    assert control("look", "c_extra")["is_ready"] is True
    control("unload", "c_extra")
    deadline = time.monotonic() + 30
    while control("look", "c_extra")["is_ready"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    config = '{"backend":"sample","max_batch_size":8,"input":[{"name":"IN","data_type":"TYPE_FP32","dims":[-1]}],' \
        '"output":[{"name":"OUT","data_type":"TYPE_FP32","dims":[-1]}]}'  # fmt: skip
    control("load", "c_extra", config=config)
    assert control("look", "c_extra")["batches"] == 2
    control("load", "c_extra")
    with pytest.raises(Exception, match="nobody"):
        control("load", "nobody")


def test_the_server_copies_only_where_an_input_is_in_pieces(calling_server):
    if calling_server.oracle:
        pytest.skip("counts copies only here")

    def copied() -> dict:
        lines = http_call(calling_server.metrics, "GET", "/metrics").body.decode().splitlines()
        found = [line for line in lines if line.startswith("nerite_copied_bytes_total{")]
        return {line.split('"')[1]: int(line.split()[-1]) for line in found}

    size = 1 << 20
    with open_client("http", calling_server) as client, registered(client, 2 * size, b"\x01" * size) as made:
        given, outputs = [Given("IN", "FP32", [size // 4], region=(made.name, size, 0))], [RequestedOutput("OUT", (made.name, size, size))]
        # From the memory of a process of its own the answer is copied to the backend's.
        answer = {"output_placement": size} if calling_server.is_isolated else {}
        for parts, more in ((1, {}), (4, {"model_request": size} | ({"model_process": size} if answer else {}))):
            expected = answer | more
            before = copied()
            client.infer("asking", given, outputs, parameters={"target": "c_identity", "parts": parts})
            after = copied()
            assert {key: after[key] - before[key] for key in after if after[key] != before[key]} == expected


def test_responses_that_are_never_deleted_are_named(calling_server):
    if calling_server.oracle:
        pytest.skip("says nothing of it")
    with open_client("http", calling_server) as client:
        for _ in range(3):
            assert numbers(client.infer("asking_leak", [fp32("IN", [1])], parameters={"target": "c_identity"})) == [1]
        client.unload("asking_leak")
        deadline = time.monotonic() + 30
        wanted = "model 'asking_leak' never deleted 3 inference requests or responses"
        while not any(wanted in line and "backend 'asking'" in line for line in errors(calling_server)):
            assert time.monotonic() < deadline, errors(calling_server)
            time.sleep(0.02)
