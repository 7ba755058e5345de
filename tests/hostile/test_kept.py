"""What if a client makes the server keep much beyond its requests: states of sequences, names of regions, configurations of models?

It is charged for that, refused beyond half of its budget, and has its room back when what it left is gone. Others are not refused.
"""

import contextlib
import json
import os
import pathlib
import time

import graphs
import onnx
import pytest
from clients import Answer, http_call
from meters import metric, peak
from regions import region
from users import as_user
from witness import falls_to, resident

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")

MIB = 1 << 20
# Half of it may be kept beyond requests.
PER_PEER = 48 * MIB
KEPT = PER_PEER // 2
STATE = 4 * MIB
# What is charged beside the bytes themselves, and connections that have just come or gone.
SPARE = MIB
IDLE_US = 3_000_000
SLOTS = 64
GREEDY = 3_000_000 + os.getpid()
MODELS = ("identity_fp32", "identity_bytes", "simple")
# What a test must not find: all that the greedy client asked for.
SLACK = 48 * MIB


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 charges nobody")
    repository = launcher.copy_of("kept_for_clients", *MODELS)
    put_remembering(repository, "remembering")
    put_ensemble(repository, "around", "remembering")
    flags = [
        f"--memory-budget={3 * PER_PEER}", f"--memory-budget-per-peer={PER_PEER}", "--model-control-mode=explicit", "--load-model=*",
        "--onnxruntime-library=none", "--http-max-input-size=100000000",
    ]  # fmt: skip
    with launcher.running("kept_for_clients", *flags, repository=repository) as found:
        yield found


def put_remembering(repository: pathlib.Path, name: str) -> None:
    """Its state is the input of the last request; it tells how many numbers it remembers."""
    nodes = [onnx.helper.make_node("Identity", ["IN"], ["NEW"]), onnx.helper.make_node("Shape", ["OLD"], ["COUNT"])]
    inputs = [graphs.value("IN", "FP32", ["n"]), graphs.value("OLD", "FP32", ["o"])]
    outputs = [graphs.value("COUNT", "INT64", [1]), graphs.value("NEW", "FP32", ["n"])]
    (repository / name / "1").mkdir(parents=True)
    onnx.save(graphs.finish(name, nodes, inputs, outputs), repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text(f"""\
backend: "onnxruntime"
max_batch_size: 0
input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "COUNT" data_type: TYPE_INT64 dims: [ 1 ] }}
instance_group [ {{ count: {SLOTS} kind: KIND_CPU }} ]
sequence_batching {{
  max_sequence_idle_microseconds: {IDLE_US}
  state {{ input_name: "OLD" output_name: "NEW" data_type: TYPE_FP32 dims: [ -1 ] }}
}}
""")


def put_ensemble(repository: pathlib.Path, name: str, step: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f"""\
name: "{name}"
platform: "ensemble"
input [ {{ name: "A" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "B" data_type: TYPE_INT64 dims: [ 1 ] }} ]
ensemble_scheduling {{ step [ {{
  model_name: "{step}" model_version: -1
  input_map {{ key: "IN" value: "A" }} output_map {{ key: "COUNT" value: "B" }}
}} ] }}
""")


def step(server, sequence: int, *flags: str, byte_size: int = STATE, model: str = "remembering") -> Answer:
    """A request of that sequence, whose state has so many bytes afterwards."""
    given, made = ("IN", "COUNT") if model == "remembering" else ("A", "B")
    parameters = {"sequence_id": sequence} | {f"sequence_{flag}": True for flag in flags}
    tensor = {"name": given, "datatype": "FP32", "shape": [byte_size // 4], "parameters": {"binary_data_size": byte_size}}
    head = json.dumps({"parameters": parameters, "inputs": [tensor], "outputs": [{"name": made}]}).encode()
    fields = {"Inference-Header-Content-Length": str(len(head))}
    return http_call(server.http, "POST", f"/v2/models/{model}/infer", head + bytes(byte_size), fields)


def remembered(answer: Answer) -> int:
    return answer.ok().json["outputs"][0]["data"][0]


def until_refused(send, most: int = 500) -> tuple[int, Answer]:
    """How often it was done before it was refused, and the refusal."""
    for count in range(most):
        answer = send(count)
        if answer.status != 200:
            return count, answer
    raise AssertionError(f"{most} were taken")


def used(server) -> int:
    return metric(server, 'nerite_memory_budget_bytes{state="used"}')


@contextlib.contextmanager
def all_comes_back(server):
    """What is charged, and what is resident, is what it was, without a limit of time but with one of size meanwhile."""
    before, resident_before = used(server), resident(server.pid)
    with peak(lambda: resident(server.pid)) as most:
        yield
    falls_to(lambda: used(server), before + SPARE)
    assert server.process.poll() is None
    assert most.most - resident_before < PER_PEER + SLACK, f"{(most.most - resident_before) / MIB:.0f} MiB"


@pytest.mark.parametrize("model", ["remembering", "around"])
def test_states_of_sequences_are_charged_to_the_client_whose_requests_made_them(server, model):
    with all_comes_back(server):
        count, refused = as_user(GREEDY, lambda: until_refused(lambda number: step(server, 1 + number, "start", model=model)))
        assert count == KEPT // STATE - 1, refused.body
        assert refused.status == 503 and b"beyond requests" in refused.body and b"--memory-budget-per-peer" in refused.body
        assert used(server) >= count * STATE
        # The sequences that were not refused go on, with the states that they had.
        assert remembered(as_user(GREEDY, lambda: step(server, 1, byte_size=STATE, model=model))) == STATE // 4
        # Nor is anybody else refused.
        assert remembered(step(server, 9001, "start", model=model)) == 1
        assert remembered(step(server, 9001, "end", model=model)) == STATE // 4
        # What ends makes room at once.
        assert as_user(GREEDY, lambda: step(server, 1, "end", model=model)).status == 200
        assert as_user(GREEDY, lambda: step(server, 777, "start", model=model)).status == 200
    # The greedy client is gone. Its sequences were idle for too long then, and no request came that would have told so.


def test_a_state_that_is_refused_leaves_its_sequence_as_it_was(server):
    with all_comes_back(server):

        def steps():
            assert step(server, 5, "start", byte_size=1024).status == 200
            refused = step(server, 5, byte_size=KEPT + MIB)
            assert refused.status == 503 and b"beyond requests" in refused.body
            assert remembered(step(server, 5, byte_size=2048)) == 256
            assert remembered(step(server, 5, "end", byte_size=4)) == 512

        as_user(GREEDY, steps)


def test_a_sequence_that_is_asked_in_time_keeps_its_state(server):
    assert step(server, 6, "start", byte_size=1024).status == 200
    time.sleep(IDLE_US / 2e6)
    assert remembered(step(server, 6, byte_size=2048)) == 256
    time.sleep(IDLE_US / 2e6)
    assert remembered(step(server, 6, "end", byte_size=4)) == 512


@pytest.mark.parametrize(("name_bytes", "slashes"), [(1000, 1), (8, 200_000)])
def test_names_and_keys_of_regions_are_charged_to_who_registered_them(server, name_bytes, slashes):
    """A key may begin with any number of slashes, which the status of the region shows."""

    def register(number: int) -> Answer:
        name = f"{number}".rjust(name_bytes, "n")
        body = {"key": "/" * slashes + made.key[1:], "offset": 0, "byte_size": 4096}
        return http_call(server.http, "POST", f"/v2/systemsharedmemory/region/{name}/register", body)

    def unregister_all() -> Answer:
        return http_call(server.http, "POST", "/v2/systemsharedmemory/unregister")

    with region(4096) as made, all_comes_back(server):
        os.chown(made.path, GREEDY, GREEDY)
        try:
            count, refused = as_user(GREEDY, lambda: until_refused(register, 20_000))
            assert refused.status in (400, 503), refused.body
            if slashes > 1:
                assert KEPT // (2 * slashes + 4096) <= count <= KEPT // (2 * slashes), count
                assert refused.status == 503 and b"beyond requests" in refused.body, refused.body
            os.chown(made.path, 0, 0)
            assert register(0).status == 200 and unregister_all().status == 200
            os.chown(made.path, GREEDY, GREEDY)
            assert as_user(GREEDY, unregister_all).status == 200
            assert as_user(GREEDY, lambda: register(0)).status == 200
        finally:
            as_user(GREEDY, unregister_all)


def test_configurations_that_are_sent_are_charged_to_who_sent_them(server):
    padding = {"padding": {"string_value": "x" * 900_000}}

    def load(model: str) -> Answer:
        shown = http_call(server.http, "GET", f"/v2/models/{model}/config").ok().json
        sent = json.dumps({**shown, "parameters": {**shown.get("parameters", {}), **padding}})
        return http_call(server.http, "POST", f"/v2/repository/models/{model}/load", {"parameters": {"config": sent}})

    def load_again(model: str) -> None:
        # A load alone keeps the configuration that was sent.
        for call in ("unload", "load"):
            assert http_call(server.http, "POST", f"/v2/repository/models/{model}/{call}", {}).status == 200

    try:
        with all_comes_back(server):
            names = [*MODELS, "remembering"]
            count, refused = as_user(GREEDY, lambda: until_refused(lambda number: load(names[number]), len(names)))
            assert refused.status == 503 and b"beyond requests" in refused.body, refused.body
            assert count == KEPT // (8 * 900_000), count
            # Anybody else may, and a model of the repository makes room.
            assert load(names[count]).status == 200
            for model in names[: count + 1]:
                load_again(model)
            assert as_user(GREEDY, lambda: load(names[0])).status == 200
            load_again(names[0])
    finally:
        for model in MODELS:
            load_again(model)


def test_registrations_and_loads_that_fail_leave_nothing_charged(server):
    """Each brings a long key or a long configuration. So many of them would be beyond the client's budget."""
    sent = {"parameters": {"padding": {"string_value": "x" * 900_000}}, "backend": "no such backend"}
    body = {"key": "/" * 200_000 + "nerite-nowhere", "offset": 0, "byte_size": 4096}
    with all_comes_back(server):
        before = used(server)
        for _ in range(2 * KEPT // 400_000):
            refused = as_user(GREEDY, lambda: http_call(server.http, "POST", "/v2/systemsharedmemory/region/nowhere/register", body))
            assert refused.status != 200 and b"nerite-nowhere" in refused.body and b"beyond requests" not in refused.body, refused.body[:500]
        for _ in range(2 * KEPT // (8 * 900_000)):
            load = {"parameters": {"config": json.dumps(sent)}}
            refused = as_user(GREEDY, lambda: http_call(server.http, "POST", "/v2/repository/models/identity_fp32/load", load))
            assert refused.status != 200 and b"beyond requests" not in refused.body, refused.body[:500]
        falls_to(lambda: used(server), before + SPARE)
