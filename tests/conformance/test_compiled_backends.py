"""Does a backend in C answer here as it does in Triton, from the same library?"""

import concurrent.futures
import itertools
import json
import secrets
import time

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as system_memory
from clients import Given, RequestedOutput, fp32, grpc_channel, http_call, int32, open_client, refuses, text
from compiled_setup import compiled, errors, put, serving, workers_of
from regions import registered
from test_decoupled import Stream

BATCHES = "max_batch_size: 8"
DECOUPLED = "model_transaction_policy { decoupled: true }"
SIZE = 1 << 20


@pytest.fixture(scope="module", params=["server", "process"])
def compiled_server(request: pytest.FixtureRequest, launcher):
    """In the server's process, and each instance in a process of its own."""
    is_isolated = request.param == "process"
    if is_isolated and launcher.oracle:
        pytest.skip("Triton has no isolated backends")
    name, flags = ("compiled_isolated", ["--backend-config=sample,isolated=true"]) if is_isolated else ("compiled", [])
    repository = launcher.scratch / name
    put(repository, "c_identity", pairs=2)
    put(repository, "c_batched", more=BATCHES)
    put(repository, "c_text", datatype="STRING")
    put(repository, "c_bounded", **{"nerite.cost_bound": "input_sizes"})
    put(repository, "c_add_sub", "add_sub", pairs=2)
    put(repository, "c_tell", "tell")
    put(repository, "c_count", "count")
    put(repository, "c_count_too", "count")
    put(repository, "c_memory", "memory", more="instance_group { kind: KIND_CPU count: 2 }")
    put(repository, "c_fail", "fail")
    put(repository, "c_answer_error", "answer_error")
    put(repository, "c_refuse", "refuse")
    put(repository, "c_repeat", "repeat", datatype="INT32", more=DECOUPLED)
    put(repository, "c_instances", more="instance_group { kind: KIND_CPU count: 3 }")
    (repository / "c_completed" / "1").mkdir(parents=True)
    (repository / "c_completed" / "config.pbtxt").write_text('backend: "sample"\n')
    with serving(launcher, name, repository, *flags) as found:
        if not launcher.oracle:
            # One for each instance of the models that are isolated.
            assert len(workers_of(found)) == (18 if is_isolated else 0)
        yield found


@pytest.fixture(params=["http", "grpc"])
def compiled_client(request: pytest.FixtureRequest, compiled_server):
    with open_client(request.param, compiled_server) as found:
        yield found


def numbers(reply, output: str = "OUT") -> list[float]:
    return np.frombuffer(reply.outputs[output].raw, np.float32).tolist()


def test_inputs_come_back(compiled_client):
    reply = compiled_client.infer("c_identity", [fp32("IN", [1, 2, 3]), fp32("IN1", [4])], id="42")
    assert (numbers(reply), numbers(reply, "OUT1"), reply.id) == ([1, 2, 3], [4], "42")
    reply = compiled_client.infer("c_batched", [fp32("IN", [[1, 2], [3, 4]])])
    assert (numbers(reply), reply.outputs["OUT"].shape) == ([1, 2, 3, 4], [2, 2])
    assert compiled_client.infer("c_text", [text("IN", [b"a", b"", b"bc" * 1000])]).outputs["OUT"].raw == \
        text("", [b"a", b"", b"bc" * 1000]).raw  # fmt: skip
    assert numbers(compiled_client.infer("c_instances", [fp32("IN", [5])])) == [5]
    # Runs that are known to be quick need no worker.
    assert [numbers(compiled_client.infer("c_bounded", [fp32("IN", [at])])) for at in range(20)] == [[at] for at in range(20)]


def test_statistics_have_the_memory_that_a_backend_reports(compiled_server, compiled_client):
    # The model has 1000 bytes of the host, and each of two instances 10 more. Each process has a model of its own.
    models = 2 if workers_of(compiled_server) else 1
    wanted = [("CPU", 0, models * 1000 + 20), ("GPU", 1, models * 1001 + 22)]

    def memory_usage() -> list[tuple[str, int, int]]:
        found = compiled_client.statistics("c_memory")[0]["memory_usage"]
        return [(one["type"], int(one["id"]), int(one["byte_size"])) for one in found]

    # What a process reports is read a moment after it has loaded.
    deadline = time.monotonic() + 60
    while memory_usage() != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert memory_usage() == wanted
    assert compiled_client.statistics("c_fail")[0]["memory_usage"] == []


def test_only_wanted_outputs_come(compiled_client):
    reply = compiled_client.infer("c_add_sub", [fp32("IN", [5, 7]), fp32("IN1", [1, 2])])
    assert (numbers(reply), numbers(reply, "OUT1")) == ([6, 9], [4, 5])
    reply = compiled_client.infer("c_add_sub", [fp32("IN", [5, 7]), fp32("IN1", [1, 2])], [RequestedOutput("OUT1")])
    assert (list(reply.outputs), numbers(reply, "OUT1")) == (["OUT1"], [4, 5])


def test_an_empty_tensor_has_no_buffer(compiled_client):
    reply = compiled_client.infer("c_identity", [Given("IN", "FP32", [0]), fp32("IN1", [4])])
    assert (reply.outputs["OUT"].shape, numbers(reply, "OUT1")) == ([0], [4])


def test_a_request_tells_of_itself(compiled_client):
    parameters = {"said": "x", "count": 7, "yes": True}
    reply = compiled_client.infer("c_tell", [fp32("IN", [1])], id="r1", parameters=parameters)
    found = dict(reply.parameters)
    assert {key: found[key] for key in ("id", "sequence", "flags", "got_said", "got_count", "got_yes")} == \
        {"id": "r1", "sequence": 0, "flags": 0, "got_said": "x", "got_count": 7, "got_yes": True}  # fmt: skip
    assert "unknown request input name nothing" in found["unknown"]
    # What it made so far.
    assert (found["made"], found["made_elements"]) == ("OUT", 1)


def test_a_sequence_is_told(compiled_client):
    given = {"sequence_id": 9, "sequence_start": True, "sequence_end": False}
    found = compiled_client.infer("c_tell", [fp32("IN", [1])], parameters=given).parameters
    assert (found["sequence"], found["flags"]) == (9, 1)
    given = {"sequence_id": "nine", "sequence_start": False, "sequence_end": True}
    found = compiled_client.infer("c_tell", [fp32("IN", [1])], parameters=given).parameters
    assert (found["sequence"], found["flags"]) == ("nine", 2)
    assert "correlation ID in request is not an unsigned int" in found["refused"]


def test_errors_are_the_requests_own(compiled_client):
    with refuses("INVALID_ARG", "fails on purpose"):
        compiled_client.infer("c_fail", [fp32("IN", [1])])
    with refuses("UNAVAILABLE", "the batch is refused on purpose"):
        compiled_client.infer("c_refuse", [fp32("IN", [1])])
    assert numbers(compiled_client.infer("c_batched", [fp32("IN", [[1]])])) == [1]


def test_a_backend_counts_for_itself(compiled_server, compiled_client):
    def count() -> float:
        page = http_call(compiled_server.metrics, "GET", "/metrics").body.decode().splitlines()
        assert "# TYPE sample_executions counter" in page
        (line,) = [line for line in page if line.startswith('sample_executions{model="c_count"}')]
        return float(line.split()[-1])

    before = count()
    for _ in range(3):
        compiled_client.infer("c_count", [fp32("IN", [1])])
    assert count() - before == 3


def test_a_configuration_is_completed(compiled_client):
    assert numbers(compiled_client.infer("c_completed", [fp32("IN", [1, 2, 3, 4])])) == [1, 2, 3, 4]
    (only,) = compiled_client.metadata("c_completed")["inputs"]
    assert (only["name"], only["datatype"], [int(one) for one in only["shape"]]) == ("IN", "FP32", [4])


@pytest.mark.parametrize(("model", "more"), [("c_add_sub", [3, 3, 3, 0]), ("c_fail", [0, 3, 0, 3]), ("c_answer_error", [3, 3, 3, 0])])
def test_statistics_are_those_that_the_backend_reports(compiled_client, model, more):
    """An error that the backend answers with is a failure if the backend says so."""

    def counts():
        (one,) = compiled_client.statistics(model)
        stats = one["inference_stats"]
        return [int(one["inference_count"]), int(one["execution_count"]), int(stats["success"]["count"]), int(stats["fail"]["count"])]

    before = counts()
    for _ in range(3):
        if more[3] or model == "c_answer_error":
            with refuses("INVALID_ARG", "fails on purpose"):
                compiled_client.infer(model, [fp32("IN", [5])])
        else:
            compiled_client.infer(model, [fp32("IN", [5]), fp32("IN1", [1])])
    deadline = time.monotonic() + 60
    expected = [number + one for number, one in zip(before, more, strict=True)]
    # The backend reports after it has answered.
    while counts() != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counts() == expected


@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_a_decoupled_model_answers_from_another_thread(compiled_server, count):
    with grpc_channel(compiled_server.grpc) as channel:
        stream = Stream(channel)
        request = stream.client.request("c_repeat", [int32("IN", list(range(count)))], None, id="r",
                                        parameters={"triton_enable_empty_final_response": True})  # fmt: skip
        stream.sent.put(request)
        found, is_last = [], False
        while not is_last:
            message = next(stream.call)
            assert message.error_message == ""
            found += [np.frombuffer(raw, np.int32)[0] for raw in message.infer_response.raw_output_contents]
            is_last = message.infer_response.parameters["triton_final_response"].bool_param
        stream.sent.put(None)
    assert found == list(range(count))


def test_tensors_lie_in_regions(compiled_client):
    a, b = np.arange(256, dtype=np.float32), np.full(256, 2, np.float32)
    with registered(compiled_client, 4096, a.tobytes() + b.tobytes()) as made:
        given = [Given("IN", "FP32", [256], region=(made.name, 1024, 0)), Given("IN1", "FP32", [256], region=(made.name, 1024, 1024))]
        requested = [RequestedOutput("OUT", (made.name, 1024, 2048)), RequestedOutput("OUT1", (made.name, 1024, 3072))]
        reply = compiled_client.infer("c_add_sub", given, requested)
        assert [one.raw for one in reply.outputs.values()] == [None, None] or reply.outputs["OUT"].raw in (None, b"")
        assert made.read(2048, 2048) == (a + b).tobytes() + (a - b).tobytes()
        small = [RequestedOutput("OUT", (made.name, 1000, 2048))]
        with refuses("INTERNAL", "shared memory size specified with the request for output 'OUT' (1000 bytes) should be at least 1024 bytes"):
            compiled_client.infer("c_add_sub", given, small)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_real_client_over_shared_memory(compiled_server, protocol):
    library = tritonclient.http if protocol == "http" else tritonclient.grpc
    client = library.InferenceServerClient(getattr(compiled_server, protocol))
    name = f"region_{secrets.token_hex(6)}"
    handle = system_memory.create_shared_memory_region(name, f"/{name}", 2 * SIZE)
    try:
        values = np.random.default_rng(7).random(SIZE // 4, np.float32)
        system_memory.set_shared_memory_region(handle, [values])
        client.register_system_shared_memory(name, f"/{name}", 2 * SIZE)
        given, requested = library.InferInput("IN", [1, SIZE // 4], "FP32"), library.InferRequestedOutput("OUT")
        given.set_shared_memory(name, SIZE)
        requested.set_shared_memory(name, SIZE, offset=SIZE)
        client.infer("c_batched", [given], outputs=[requested])
        assert (system_memory.get_contents_as_numpy(handle, np.float32, [SIZE // 4], offset=SIZE) == values).all()
        client.unregister_system_shared_memory(name)
    finally:
        client.close()
        system_memory.destroy_shared_memory_region(handle)


def copied(server) -> int:
    lines = http_call(server.metrics, "GET", "/metrics").body.decode().splitlines()
    return sum(int(line.split()[-1]) for line in lines if line.startswith("nerite_copied_bytes_total{"))


def test_the_server_copies_nothing_between_a_region_and_the_backend(compiled_server, compiled_client):
    if compiled_server.oracle:
        pytest.skip("counts copies only here")
    with registered(compiled_client, 2 * SIZE, b"\x01" * SIZE) as made:
        before = copied(compiled_server)
        given = [Given("IN", "FP32", [1, SIZE // 4], region=(made.name, SIZE, 0))]
        compiled_client.infer("c_batched", given, [RequestedOutput("OUT", (made.name, SIZE, SIZE))])
        assert (made.read(SIZE, SIZE), copied(compiled_server) - before) == (b"\x01" * SIZE, 0)


@pytest.mark.parametrize("needs", ["libtritonserver.so", "libtritonserver-0a1b2c3d.so"])
def test_a_library_may_need_the_interface_by_any_name(launcher, needs):
    if launcher.oracle:
        pytest.skip("Triton's wheel has one name only")
    name = f"needs_{needs.split('.')[0].replace('-', '_')}"
    repository = launcher.scratch / name
    put(repository, "c_identity")
    with serving(launcher, name, repository, needs=needs) as server, open_client("http", server) as client:
        assert numbers(client.infer("c_identity", [fp32("IN", [3])])) == [3]


def test_a_model_may_bring_its_backend_along(launcher):
    repository = launcher.scratch / "brought_along"
    compiled(put(repository, "by_version", backend="own_a") / "1" / "libtriton_own_a.so")
    compiled(put(repository, "by_model", backend="own_b") / "libtriton_own_b.so")
    with launcher.running("brought_along", repository=repository) as server, open_client("http", server) as client:
        for model in ("by_version", "by_model"):
            assert numbers(client.infer(model, [fp32("IN", [3])])) == [3]


def test_a_named_backend_wins_over_the_built_in_one(launcher):
    backends, repository = launcher.scratch / "wins_backends", launcher.scratch / "wins"
    compiled(backends / "identity" / "libtriton_identity.so")
    put(repository, "c_add_sub", "add_sub", pairs=2, backend="identity")
    with launcher.running("wins", f"--backend-directory={backends}", repository=repository) as server:
        with open_client("http", server) as client:
            assert numbers(client.infer("c_add_sub", [fp32("IN", [5]), fp32("IN1", [2])])) == [7]
        assert str(backends / "identity" / "libtriton_identity.so") in server.log_text()


def test_a_configuration_names_the_version_of_its_backend(launcher):
    backends, repository = launcher.scratch / "versions_backends", launcher.scratch / "versions"
    compiled(backends / "mine" / "libtriton_mine.so")
    compiled(backends / "mine" / "libtriton_mine_2.so", source="responses")
    # A backend may have no library of its own name.
    compiled(backends / "other" / "libtriton_mine_3.so")
    put(repository, "usual", "add_sub", pairs=2, backend="mine")
    put(repository, "named", backend="mine", datatype="INT32", more='runtime: "libtriton_mine_2.so"\n' + DECOUPLED)
    put(repository, "only", backend="other", more='runtime: "libtriton_mine_3.so"')
    put(repository, "unnamed", backend="other")
    flags = [f"--backend-directory={backends}", "--exit-on-error=false"]
    with launcher.running("versions", *flags, repository=repository) as server, open_client("http", server) as client:
        assert numbers(client.infer("usual", [fp32("IN", [5]), fp32("IN1", [2])])) == [7]
        assert numbers(client.infer("only", [fp32("IN", [5])])) == [5]
        states = {one["name"]: one["state"] for one in client.index()}
        assert states == {"usual": "READY", "named": "READY", "only": "READY", "unnamed": "UNAVAILABLE"}
        with grpc_channel(server.grpc) as channel:
            stream = Stream(channel)
            stream.sent.put(stream.client.request("named", [int32("IN", [1])], None, id="r"))
            # The backend `responses` tells the code of the error of its report: none.
            assert np.frombuffer(next(stream.call).infer_response.raw_output_contents[0], np.int32).tolist() == [0]
            stream.sent.put(None)


MISSING = {
    "library": ("libtriton_mine_9.so", "unable to find backend library 'libtriton_mine_9.so' for model 'library', searched: "),
    "brought": ("libtriton_mine_8.so", "unable to find backend library 'libtriton_mine_8.so' for model 'brought', searched: "),
    "class": ("model.py", "unable to find Python backend based backend library 'model.py' for model 'class', searched: "),
}


def test_a_file_that_a_configuration_names_and_that_is_not_there_is_not_replaced(launcher):
    backends, repository = launcher.scratch / "missing_backends", launcher.scratch / "missing"
    compiled(backends / "mine" / "libtriton_mine.so")
    for name, (file, _) in MISSING.items():
        folder = put(repository, name, backend="mine", more=f'runtime: "{file}"')
        if name == "brought":
            compiled(folder / "1" / "libtriton_mine.so")
    put(repository, "usual", backend="mine", more='runtime: "libtriton_mine.so"')
    flags = [f"--backend-directory={backends}", "--exit-on-error=false"]
    with launcher.running("missing", *flags, repository=repository) as server, open_client("http", server) as client:
        reasons = {one["name"]: one.get("reason", "") for one in client.index()}
        for name, (_, text) in MISSING.items():
            if launcher.oracle and name == "class":
                # Triton looks for the Python backend first, which is not in this directory.
                assert "unable to find backend library 'libtriton_python.so' for model 'class'" in reasons[name], reasons
                continue
            assert text in reasons[name], reasons
            if not launcher.oracle:
                assert "leave 'runtime' out of the configuration" in reasons[name]
        for place in (repository / "library" / "1", repository / "library", backends / "mine"):
            assert f"'{place}'" in reasons["library"], reasons
        assert numbers(client.infer("usual", [fp32("IN", [5])])) == [5]


@pytest.mark.triton_differs("it loads a library of any name, which a configuration that a client sends may name too")
@pytest.mark.parametrize("file", ["other.so", "../mine/libtriton_mine.so"])
def test_a_configuration_names_no_other_file_than_a_library_of_a_backend(launcher, file):
    name = f"named_{'path' if '/' in file else 'other'}"
    backends, repository = launcher.scratch / f"{name}_backends", launcher.scratch / name
    compiled(backends / "mine" / "libtriton_mine.so")
    compiled(backends / "mine" / "other.so")
    put(repository, "named", backend="mine", more=f'runtime: "{file}"')
    flags = [f"--backend-directory={backends}", "--exit-on-error=false"]
    with launcher.running(name, *flags, repository=repository) as server, open_client("http", server) as client:
        (only,) = client.index()
        assert f"unable to find backend library '{file}' for model 'named'" in only.get("reason", ""), only


GROUPS = {
    "without": ("", [("without", 1)]),
    "batching": ("max_batch_size: 8 dynamic_batching { }", [("batching", 1)]),
    "several": ('instance_group [{ }, { kind: KIND_CPU count: 2 }, { name: "x" }]', [("several_0", 1), ("several_1", 2), ("x", 1)]),
}


@pytest.mark.parametrize("prefers", [0, 3])
@pytest.mark.parametrize("where", ["server", "process"])
def test_a_backend_sees_the_whole_configuration_when_its_model_is_initialized(launcher, where, prefers):
    """With the instance groups that it prefers, where the author says nothing."""
    if where == "process" and launcher.oracle:
        pytest.skip("Triton has no isolated backends")
    name = f"groups_{where}_{prefers}"
    repository = launcher.scratch / name
    for model, (more, _) in GROUPS.items():
        put(repository, model, "config", more=more)
    flags = [f"--backend-config=sample,prefer={prefers}"] + ["--backend-config=sample,isolated=true"] * (where == "process")
    with serving(launcher, name, repository, *flags) as server, open_client("http", server) as client:
        for model in GROUPS:
            rows = [[1.0]] if model == "batching" else [1.0]
            seen = json.loads(client.infer(model, [fp32("IN", rows)]).parameters["config"])
            assert [(one["name"], one["count"], one["kind"]) for one in seen["instance_group"]] == [(*one, "KIND_CPU") for one in instance_groups(model, prefers)]
            # Nothing else came later.
            assert json.loads(http_call(server.http, "GET", f"/v2/models/{model}/config").body) == seen
        if where == "process":
            assert len(workers_of(server)) == sum(count for model in GROUPS for _, count in instance_groups(model, prefers))


def instance_groups(model: str, prefers: int) -> list[tuple[str, int]]:
    """The instance groups of a model of that test."""
    return [(group, count if group == "several_1" else prefers or count) for group, count in GROUPS[model][1]]


@pytest.mark.parametrize("policy", [0, 1])
def test_instances_on_the_host_run_side_by_side_by_either_execution_policy(launcher, policy):
    """As in Triton 2.51, the policy of devices is for those on a GPU (crates/cabi/tests/execution_policy.rs)."""
    repository = launcher.scratch / f"policy_{policy}"
    put(repository, "crowd", "crowd", delay_ms="500", more="instance_group { kind: KIND_CPU count: 2 }")
    with serving(launcher, f"policy_{policy}", repository, f"--backend-config=sample,policy={policy}") as server:

        def infer(_: int) -> int:
            with open_client("http", server) as client:
                return client.infer("crowd", [fp32("IN", [1])]).parameters["most"]

        most, deadline = 0, time.monotonic() + 60
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            # On a busy machine they may come one after the other.
            while most < 2 and time.monotonic() < deadline:
                most = max(pool.map(infer, range(6)))
        assert most == 2


@pytest.mark.parametrize(("parallel", "delay_ms", "most"), [(0, 300, 1), (1, 60_000, 2)])
def test_instances_are_initialized_at_the_same_time_only_where_the_backend_allows_it(launcher, parallel, delay_ms, most):
    """Each waits for a second one until its delay is over."""
    repository = launcher.scratch / f"parallel_{parallel}"
    put(repository, "crowd", "crowd_at_load", delay_ms=str(delay_ms), more="instance_group { kind: KIND_CPU count: 2 }")
    with serving(launcher, f"parallel_{parallel}", repository, f"--backend-config=sample,parallel={parallel}") as server:
        with open_client("http", server) as client:
            assert client.infer("crowd", [fp32("IN", [1])]).parameters["most"] == most


def test_the_table_at_the_start_shows_each_backend_and_its_library(launcher):
    name = "table"
    put(launcher.scratch / name, "c_identity")
    with serving(launcher, name, launcher.scratch / name, "--backend-config=sample,fail=none") as server:
        lines = server.log_text().splitlines()
    (heading,) = [at for at, line in enumerate(lines) if line.replace(" ", "") == "|Backend|Path|Config|"]
    table = itertools.takewhile(lambda line: line.startswith(("|", "+")), lines[heading + 1 :])
    rows = {row[0]: row[1:] for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in table)}
    path, config = rows["sample"]
    assert path == str(launcher.scratch / f"{name}_backends" / "sample" / "libtriton_sample.so")
    assert '"fail":"none"' in config
    if not launcher.oracle:
        assert rows["identity"] == ["built in", "{}"]


SETTINGS = ['"fail":"none"', '"backend-directory":', '"default-max-batch-size":"4"', '"auto-complete-config":"true"', '"min-compute-capability":"6']


def test_the_operators_settings_reach_the_backend(launcher):
    repository = launcher.scratch / "settings"
    put(repository, "c_identity")
    with serving(launcher, "settings", repository, "--backend-config=sample,fail=none") as server:
        said = server.log_text().replace("\\", "")
        assert [one for one in SETTINGS if one not in said] == []


FAILING = [("refuse_model", "the model is refused on purpose"), ("refuse_instance", "the instance is refused on purpose")]


def test_what_a_backend_refuses_at_load_fails_that_model(launcher):
    repository = launcher.scratch / "failing"
    for mode, _ in FAILING:
        put(repository, mode, mode)
    put(repository, "c_identity")
    with serving(launcher, "failing", repository, "--exit-on-error=false") as server, open_client("http", server) as client:
        reasons = {one["name"]: (one["state"], one["reason"]) for one in client.index()}
        for mode, why in FAILING:
            assert reasons[mode][0] == "UNAVAILABLE" and why in reasons[mode][1], reasons
        # Their last functions are called all the same, so that they can free what they have.
        for what in ("model refuse_model is finalized", "instance refuse_instance_0 is finalized", "model refuse_instance is finalized"):
            assert what in server.log_text(), server.log_text()
        assert numbers(client.infer("c_identity", [fp32("IN", [3])])) == [3]


def test_a_model_whose_completed_configuration_is_refused_is_finalized(launcher):
    repository = launcher.scratch / "completed_wrong"
    (repository / "completed_wrong" / "1").mkdir(parents=True)
    config = 'backend: "sample"\nparameters { key: "mode" value { string_value: "complete_wrong" } }\n'
    (repository / "completed_wrong" / "config.pbtxt").write_text(config)
    with serving(launcher, "completed_wrong", repository, "--exit-on-error=false") as server, open_client("http", server) as client:
        (only,) = client.index()
        assert only["state"] == "UNAVAILABLE" and "dimension" in only["reason"], only
        deadline = time.monotonic() + 30
        while "model completed_wrong is finalized" not in server.log_text():
            assert time.monotonic() < deadline, server.log_text()
            time.sleep(0.02)


def test_a_backend_that_does_not_start_fails_its_models(launcher):
    repository = launcher.scratch / "unstarted"
    put(repository, "c_identity")
    flags = ["--backend-config=sample,fail=initialize", "--exit-on-error=false"]
    with serving(launcher, "unstarted", repository, *flags) as server, open_client("http", server) as client:
        (only,) = client.index()
        assert only["state"] == "UNAVAILABLE" and "initialize fails on purpose" in only["reason"]
        assert "backend is finalized" in server.log_text()
        if not launcher.oracle:
            assert any("backend 'sample'" in line and "initialize fails on purpose" in line for line in errors(server))
