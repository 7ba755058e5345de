"""Do the requests of a sequence reach one instance in order, and is the model told where it stands?"""

import concurrent.futures
import contextlib
import pathlib
import queue
import time

import graphs
import numpy as np
import onnx
import pytest
import servers
from batching_setup import pending
from clients import differs, http_call, int32, open_client, refuses

# SEEN: START, END and READY of the request, the requests in its batch, and those of them that are READY. SUM: of the sequence so far.
MODEL = """\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        def control(request, name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]

        ready = [control(request, "READY") for request in requests]
        responses = []
        for request, is_ready in zip(requests, ready):
            key = str(control(request, "CORRID"))
            start, end = control(request, "START"), control(request, "END")
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if is_ready:
                self.sums[key] = value if start else self.sums[key] + value
            seen = numpy.array([start, end, is_ready, len(requests), sum(ready)], numpy.int32)
            name = numpy.array([key.encode()], object)
            shape = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().shape
            made = [("SUM", self.sums.get(key, value)), ("SEEN", seen), ("KEY", name), ("SHAPE", numpy.array(shape, numpy.int32))]
            if len(value.shape) > 1:
                made = [(name, array.reshape([1, -1])) for name, array in made]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(*pair) for pair in made]))
        return responses
"""
IDLE_US = 60_000_000
DIRECT, OLDEST = "direct { }", "oldest { max_candidate_sequences: 4 }"


def put(repository: pathlib.Path, name: str, strategy: str, *, batch: int = 0, idle_us: int = IDLE_US, corrid: str = "UINT64") -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(MODEL)
    outputs = (("SUM", "INT32"), ("SEEN", "INT32"), ("KEY", "STRING"), ("SHAPE", "INT32"))
    made = "".join(f'output {{ name: "{output}" data_type: TYPE_{datatype} dims: [ -1 ] }}\n' for output, datatype in outputs)
    flags = "".join(
        f'control_input {{ name: "{kind}" control {{ kind: CONTROL_SEQUENCE_{kind} int32_false_true: [ 0, 1 ] }} }}\n'
        for kind in ("START", "END", "READY")
    )
    (repository / name / "config.pbtxt").write_text(f"""\
backend: "python"
max_batch_size: {batch}
input {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }}
{made}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
sequence_batching {{
  max_sequence_idle_microseconds: {idle_us}
  {strategy}
  {flags}
  control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{corrid} }} }}
}}
""")


# It keeps nothing itself: the sum so far is its state.
STATEFUL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value, state = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "SO_FAR"))
            value = value + state.reshape(value.shape)
            made = [pb_utils.Tensor("SUM", value), pb_utils.Tensor("NEW_SUM", value.reshape(state.shape))]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""


def put_stateful(repository: pathlib.Path, name: str, *, batch: int = 0, strategy: str = DIRECT, initial: str = "", dims: int = 1, onnx_model=None) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "initial_state").mkdir()
    (repository / name / "initial_state" / "hundred").write_bytes((100).to_bytes(4, "little"))
    if onnx_model is None:
        (repository / name / "1" / "model.py").write_text(STATEFUL)
    else:
        onnx.save(onnx_model, repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text(f"""\
backend: "{'python' if onnx_model is None else 'onnxruntime'}"
max_batch_size: {batch}
input {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }}
instance_group [ {{ count: 2 kind: KIND_CPU }} ]
sequence_batching {{
  max_sequence_idle_microseconds: {IDLE_US}
  {strategy}
  state {{ input_name: "SO_FAR" output_name: "NEW_SUM" data_type: TYPE_INT32 dims: [ {dims} ] {initial} }}
}}
""")


INITIAL = 'initial_state {{ name: "first" data_type: TYPE_INT32 dims: [ 1 ] {} }}'


@pytest.fixture(scope="module")
def sequences(launcher):
    repository = launcher.scratch / "sequences"
    put(repository, "direct", DIRECT)
    put(repository, "direct_4", DIRECT, batch=4)
    put(repository, "oldest_4", OLDEST, batch=4)
    put(repository, "named", DIRECT, batch=4, corrid="STRING")
    put(repository, "int32_id", DIRECT, batch=4, corrid="INT32")
    put(repository, "uint32_id", DIRECT, batch=4, corrid="UINT32")
    put(repository, "int64_id", DIRECT, batch=4, corrid="INT64")
    put(repository, "impatient", DIRECT, idle_us=300_000)
    put(repository, "one_slot", DIRECT)
    put(repository, "direct_1", DIRECT, batch=1)
    put(repository, "oldest_1", "oldest { max_candidate_sequences: 1 }", batch=1)
    put_stateful(repository, "state", initial=INITIAL.format("zero_data: true"))
    put_stateful(repository, "state_4", batch=4, initial=INITIAL.format("zero_data: true"))
    put_stateful(repository, "state_oldest", batch=4, strategy=OLDEST, initial=INITIAL.format("zero_data: true"))
    put_stateful(repository, "state_file", initial=INITIAL.format('data_file: "hundred"'))
    with launcher.running("sequences", repository=repository) as found:
        yield found


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request, sequences):
    with open_client(request.param, sequences) as found:
        yield found


def step(client, model: str, value: int, id, *flags: str, batch: bool = True, **more):
    given = int32("IN", [[value]]) if batch else int32("IN", [value])
    parameters = {"sequence_id": id} | {f"sequence_{flag}": True for flag in flags} | more
    return client.infer(model, [given], parameters=parameters)


def numbers(reply, output: str) -> list[int]:
    return np.frombuffer(reply.outputs[output].raw, np.int32).tolist()


def key(reply) -> bytes:
    return reply.outputs["KEY"].raw[4:]


@pytest.mark.parametrize("model", ["direct", "direct_4", "oldest_4"])
def test_a_model_is_told_where_its_sequence_stands(client, model):
    batch = model != "direct"
    first = step(client, model, 1, 1001, "start", batch=batch)
    middle = step(client, model, 2, 1001, batch=batch)
    last = step(client, model, 3, 1001, "end", batch=batch)
    assert [numbers(reply, "SUM") for reply in (first, middle, last)] == [[1], [3], [6]]
    assert [numbers(reply, "SEEN")[:3] for reply in (first, middle, last)] == [[1, 0, 1], [0, 0, 1], [0, 1, 1]]
    assert key(middle) == b"1001"
    assert numbers(first, "SHAPE") == ([1, 1] if batch else [1])


@pytest.mark.parametrize("model", ["direct_4", "oldest_4"])
def test_sequences_side_by_side_do_not_mix(client, model):
    ids = [2001, 2002, 2003]
    for at, id in enumerate(ids):
        assert numbers(step(client, model, 10**at, id, "start"), "SUM") == [10**at]
    for at, id in reversed(list(enumerate(ids))):
        assert numbers(step(client, model, 10**at, id), "SUM") == [2 * 10**at]
    for at, id in enumerate(ids):
        assert numbers(step(client, model, 10**at, id, "end"), "SUM") == [3 * 10**at]


@differs("2.51 makes two strings of it, and refuses its own tensor")
def test_an_id_that_is_text(client):
    step(client, "named", 1, "green", "start")
    last = step(client, "named", 2, "green", "end")
    assert numbers(last, "SUM") == [3] and b"green" in key(last)


@pytest.mark.parametrize(
    ("model", "seen"), [("int32_id", b"-268435447"), ("uint32_id", b"4026531849"), ("int64_id", b"34091302921")]
)
def test_an_id_has_the_lower_bits_in_the_datatype_of_its_control(client, model, seen):
    reply = step(client, model, 1, 0x7_F000_0009, "start", "end")
    assert key(reply) == seen


def test_positions_without_a_request_are_not_ready(client):
    """The first position is that of a sequence without a request now."""
    step(client, "direct_4", 1, 3001, "start")
    step(client, "direct_4", 1, 3002, "start")
    reply = step(client, "direct_4", 2, 3002)
    assert (numbers(reply, "SUM"), numbers(reply, "SEEN")) == ([3], [0, 0, 1, 2, 1])
    for id in (3001, 3002):
        assert numbers(step(client, "direct_4", 1, id, "end"), "SEEN")[2] == 1


def test_a_start_begins_anew(client):
    step(client, "direct", 1, 4001, "start", batch=False)
    step(client, "direct", 1, 4001, batch=False)
    assert numbers(step(client, "direct", 5, 4001, "start", batch=False), "SUM") == [5]
    assert numbers(step(client, "direct", 5, 4001, "end", batch=False), "SUM") == [10]


def test_after_its_end_a_sequence_needs_a_start(client):
    step(client, "direct", 1, 4002, "start", "end", batch=False)
    text = "inference request for sequence 4002 to model 'direct' must specify the START flag on the first request of the sequence"
    with refuses("INVALID_ARG", text):
        step(client, "direct", 1, 4002, batch=False)


def test_an_idle_sequence_is_over(client):
    step(client, "impatient", 1, 5001, "start", batch=False)
    deadline = time.monotonic() + 60
    # Each request that comes in time keeps the sequence.
    while time.monotonic() < deadline:
        time.sleep(1)
        try:
            step(client, "impatient", 1, 5001, batch=False)
        except Exception as refused:
            assert "must specify the START flag" in str(refused)
            return
    pytest.fail("a sequence outlived its idle time")


def test_a_sequence_without_a_slot_waits_for_one(client, sequences):
    step(client, "one_slot", 1, 6001, "start", batch=False)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, open_client("grpc", sequences) as other:
        waiting = pool.submit(step, other, "one_slot", 7, 6002, "start", "end", batch=False)
        wait_for_pending(sequences, "one_slot", 1)
        assert numbers(step(client, "one_slot", 1, 6001, batch=False), "SUM") == [2]
        assert not waiting.done()
        step(client, "one_slot", 1, 6001, "end", batch=False)
        assert numbers(waiting.result(60), "SUM") == [7]


def test_a_request_may_bound_how_long_it_waits_for_a_slot(client, sequences):
    step(client, "one_slot", 1, 7001, "start", batch=False)
    with refuses("UNAVAILABLE", "timeout of the corresponding sequence has been expired"):
        step(client, "one_slot", 1, 7002, "start", batch=False, timeout=100_000)
    assert numbers(step(client, "one_slot", 1, 7001, "end", batch=False), "SUM") == [2]


@differs("2.51 answers cancelled requests of the backlog when a slot is free")
@pytest.mark.parametrize("leaves", ["cancels", "disconnects"])
@pytest.mark.parametrize("model", ["direct_1", "oldest_1"])
def test_a_sequence_ends_when_one_of_its_waiting_requests_is_cancelled(sequences, model, leaves):
    import tritonclient.grpc as triton_grpc

    errors = queue.Queue()
    with open_client("grpc", sequences) as other, contextlib.ExitStack() as stack:
        before = other.statistics(model)[0]["inference_stats"]["success"]["count"]
        step(other, model, 1, 9401, "start")
        senders = [stack.enter_context(triton_grpc.InferenceServerClient(sequences.grpc)) for _ in range(3)]
        calls = []
        for at, sender in enumerate(senders):
            given = triton_grpc.InferInput("IN", [1, 1], "INT32")
            given.set_data_from_numpy(np.array([[5]], np.int32))
            flags = {"sequence_start": at == 0, "sequence_end": at == 2}
            calls.append(sender.async_infer(model, [given], lambda result, error: errors.put(error), sequence_id=9402, **flags))
            wait_for_pending(sequences, model, at + 1)
        if leaves == "cancels":
            calls[0].cancel()
        else:
            senders[0].close()
        wait_for_pending(sequences, model, 0)
        assert [errors.get(timeout=60).status() for _ in senders] == ["StatusCode.CANCELLED"] * 3
        with refuses("INVALID_ARG", f"inference request for sequence 9402 to model '{model}' must specify the START flag on the first request of the sequence"):
            step(other, model, 1, 9402)
        assert numbers(step(other, model, 1, 9401, "end"), "SUM") == [2]
        again = step(other, model, 7, 9402, "start", "end")
        assert (numbers(again, "SUM"), numbers(again, "SEEN")) == ([7], [1, 1, 1, 1, 1])
        assert other.statistics(model)[0]["inference_stats"]["success"]["count"] - before == 3


def wait_for_pending(sequences, model: str, count: int) -> None:
    deadline = time.monotonic() + 60
    while pending(sequences, model) != count:
        assert time.monotonic() < deadline, f"{pending(sequences, model)} requests wait, not {count}"
        time.sleep(0.01)


@pytest.mark.parametrize("model", ["direct_4", "oldest_4"])
def test_many_sequences_at_once_keep_their_sums(sequences, model):
    """Sixteen sequences on four slots: each waits for its slot, and none sees another's numbers."""

    def run(number: int) -> list[int]:
        with open_client("grpc" if number % 2 else "http", sequences) as client:
            seen = []
            for turn in range(6):
                flags = [flag for flag, at in (("start", 0), ("end", 5)) if turn == at]
                seen += numbers(step(client, model, number + turn, 8000 + number, *flags), "SUM")
            return seen

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(run, range(16)))
    assert found == [[sum(number + turn for turn in range(last + 1)) for last in range(6)] for number in range(16)]


def on_streams(sequences, model: str, ids: list[int], turns: int, streams: int = 1) -> dict[int, list[int]]:
    """The sums of these sequences, whose requests are sent in turns, without waiting for answers."""
    import tritonclient.grpc as triton_grpc

    answers = queue.Queue()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(triton_grpc.InferenceServerClient(sequences.grpc)) for _ in range(streams)]
        for client in clients:
            client.start_stream(lambda result, error: answers.put((result, error)))
        for turn in range(turns):
            for at, id in enumerate(ids):
                given = triton_grpc.InferInput("IN", [1, 1], "INT32")
                given.set_data_from_numpy(np.array([[at + turn]], np.int32))
                flags = {"sequence_start": turn == 0, "sequence_end": turn == turns - 1}
                # A stream carries whole sequences.
                clients[at % streams].async_stream_infer(model, [given], request_id=str(id), sequence_id=id, **flags)
        found = {id: [] for id in ids}
        for _ in range(turns * len(ids)):
            result, error = answers.get(timeout=30)
            assert error is None, error
            found[int(result.get_response().id)] += result.as_numpy("SUM").reshape(-1).tolist()
        return found


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("model", ["direct_4", "oldest_4"])
def test_sequences_that_share_a_stream_keep_their_order_and_sums(sequences, model, streams):
    """There are more of them than slots, and nobody waits for an answer before the next request."""
    ids, turns = list(range(9_200, 9_206)), 12
    found = on_streams(sequences, model, ids, turns, streams)
    assert found == {id: [sum(at + turn for turn in range(last + 1)) for last in range(turns)] for at, id in enumerate(ids)}


@pytest.mark.parametrize("model", ["direct_1", "oldest_1", "direct_4", "oldest_4"])
def test_a_start_before_the_end_waits_for_all_earlier_requests_of_the_id(sequences, model):
    """Two ids start again and again without END, and nobody waits for an answer. A third one shares the batches, or waits for a slot."""
    import tritonclient.grpc as triton_grpc

    answers, sent, expect = queue.Queue(), 400, {}
    ids = [9_401, 9_402, 9_403]
    with triton_grpc.InferenceServerClient(sequences.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for at in range(sent):
            id, turn = ids[at % 3], at // 3
            start, end = turn == 0 or id != ids[2] and turn % (2 + id % 3) == 0, turn == (sent - 1 - at % 3) // 3
            given = triton_grpc.InferInput("IN", [1, 1], "INT32")
            given.set_data_from_numpy(np.array([[at]], np.int32))
            sums = expect.setdefault(id, [])
            sums.append(at if start else sums[-1] + at)
            client.async_stream_infer(model, [given], request_id=str(id), sequence_id=id, sequence_start=start, sequence_end=end)
        found = {id: [] for id in ids}
        for _ in range(sent):
            result, error = answers.get(timeout=30)
            assert error is None, error
            found[int(result.get_response().id)] += result.as_numpy("SUM").reshape(-1).tolist()
    assert found == expect


def test_a_stream_goes_on_after_a_sequence_without_a_start(sequences):
    import tritonclient.grpc as triton_grpc

    answers = queue.Queue()
    with triton_grpc.InferenceServerClient(sequences.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        given = triton_grpc.InferInput("IN", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[5]], np.int32))
        client.async_stream_infer("direct_4", [given], sequence_id=9_301)
        assert "sequence 9301 to model 'direct_4' must specify the START flag" in str(answers.get(timeout=30)[1])
        client.async_stream_infer("direct_4", [given], sequence_id=9_301, sequence_start=True, sequence_end=True)
        result, error = answers.get(timeout=30)
        assert error is None and result.as_numpy("SUM").reshape(-1).tolist() == [5]


@differs("the Python backend of 2.51 keeps no state")
@pytest.mark.parametrize(("model", "batch", "first"), [("state", False, 0), ("state_4", True, 0), ("state_oldest", True, 0), ("state_file", False, 100)])
def test_a_model_finds_its_state_again(client, model, batch, first):
    def sums(id: int, *values: int) -> list[list[int]]:
        flags = [["start"], *([] for _ in values[2:]), ["end"]]
        replies = [step(client, model, value, id, *which, batch=batch) for value, which in zip(values, flags)]
        # The state itself is nobody's output.
        assert all(list(reply.outputs) == ["SUM"] for reply in replies)
        return [numbers(reply, "SUM") for reply in replies]

    assert sums(1101, 1, 2, 3) == [[first + 1], [first + 3], [first + 6]]
    # A new sequence begins anew, in the slot of the one before.
    assert sums(1102, 5, 5) == [[first + 5], [first + 10]]


@differs("the Python backend of 2.51 keeps no state")
@pytest.mark.parametrize("model", ["state_4", "state_oldest"])
def test_each_sequence_has_a_state_of_its_own(sequences, model):
    def run(number: int) -> list[int]:
        with open_client("grpc" if number % 2 else "http", sequences) as client:
            seen = []
            for turn in range(8):
                flags = [flag for flag, at in (("start", 0), ("end", 7)) if turn == at]
                seen += numbers(step(client, model, number, 9100 + number, *flags), "SUM")
            return seen

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(run, range(12))) == [[number * turn for turn in range(1, 9)] for number in range(12)]


def test_the_state_of_an_onnx_model_is_not_copied(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no ONNX here, and does not say what it copies")
    repository = launcher.scratch / "sequences_onnx"
    many = 1 << 16
    nodes = [
        onnx.helper.make_node("Add", ["IN", "SO_FAR"], ["NEW_SUM"]),
        onnx.helper.make_node("ReduceMax", ["NEW_SUM"], ["SUM"], axes=[0], keepdims=1),
    ]
    inputs = [graphs.value("IN", "INT32", [1]), graphs.value("SO_FAR", "INT32", [many])]
    outputs = [graphs.value("SUM", "INT32", [1]), graphs.value("NEW_SUM", "INT32", [many])]
    put_stateful(repository, "state", dims=many, onnx_model=graphs.finish("state", nodes, inputs, outputs))
    with launcher.running("sequences_onnx", servers.onnxruntime_flag(), repository=repository) as server:
        with open_client("grpc", server) as client:
            for number in range(3):
                before = copied_bytes(server)
                flags = [["start"], [], ["end"]][number]
                assert numbers(step(client, "state", 2, 1, *flags, batch=False), "SUM") == [2 * (number + 1)]
                # The number of the request and that of the answer may be; the state has 256 KiB.
                assert copied_bytes(server) - before <= 64


# Its state is many numbers, all the same.
WIDE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value, state = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "SO_FAR"))
            made = [pb_utils.Tensor("SUM", value + state[:1] + state[-1:] * 0), pb_utils.Tensor("NEW_SUM", state + value[0])]
            responses.append(pb_utils.InferenceResponse(made))
        return responses
"""


def test_the_state_of_a_python_model_stays_where_the_model_wrote_it(launcher):
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies")
    repository = launcher.scratch / "sequences_python"
    many = 1 << 16
    put_stateful(repository, "state", dims=many)
    (repository / "state" / "1" / "model.py").write_text(WIDE)
    with launcher.running("sequences_python", repository=repository) as server:
        with open_client("grpc", server) as client:
            for sequence in (1, 2):
                for number in range(4):
                    before = copies(server)
                    flags = ["start"] if number == 0 else ["end"] if number == 3 else []
                    assert numbers(step(client, "state", 2, sequence, *flags, batch=False), "SUM") == [2 * (number + 1)]
                    after = copies(server)
                    # The number of the request and that of the answer are; the state has 256 KiB, of which the first step gets the initial one.
                    initial = 4 * many if number == 0 else 0
                    for reason in ("model_process", "inline_response", "output_placement"):
                        assert 0 <= after[reason] - before[reason] - (initial if reason == "model_process" else 0) <= 64, (number, reason)


def copies(server) -> dict[str, int]:
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    lines = [line for line in page.splitlines() if line.startswith("nerite_copied_bytes_total{")]
    return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}


def copied_bytes(server) -> int:
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    return sum(int(float(line.split()[-1])) for line in page.splitlines() if line.startswith("nerite_copied_bytes_total{"))


def test_a_client_that_starts_many_sequences_is_refused_past_the_bound(launcher):
    if launcher.oracle:
        pytest.skip("2.51 bounds no queue of sequences")
    repository = launcher.scratch / "sequences_bounded"
    put(repository, "one_slot", DIRECT)
    with launcher.running("sequences_bounded", "--queue-requests-max=4", repository=repository) as server:
        with open_client("grpc", server) as client, concurrent.futures.ThreadPoolExecutor(12) as pool:
            step(client, "one_slot", 1, 1, "start", batch=False)
            waiting = [pool.submit(step, client, "one_slot", 1, 100 + n, "start", "end", batch=False) for n in range(12)]
            deadline = time.monotonic() + 60
            # One client has three of the four places.
            while sum(one.done() for one in waiting) < 9 and time.monotonic() < deadline:
                time.sleep(0.01)
            refused = [str(one.exception()) for one in waiting if one.done()]
            assert len(refused) == 9 and all("Exceeds maximum queue size" in text for text in refused), refused
            step(client, "one_slot", 1, 1, "end", batch=False)
            assert sum(one.exception(60) is None for one in waiting) == 3


def test_a_scheduler_that_is_held_back_waits_for_a_backlog(launcher, monkeypatch):
    # 2.51 looks at the second variable only where the first is set.
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "1")
    monkeypatch.setenv("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", "1")
    repository = launcher.scratch / "sequences_held_back"
    put(repository, "one_slot", DIRECT)
    with launcher.running("sequences_held_back", repository=repository) as server:
        with open_client("grpc", server) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(step, client, "one_slot", 1, 1, "start", "end", batch=False)
            assert not concurrent.futures.wait([first], timeout=1).done
            second = pool.submit(step, client, "one_slot", 2, 2, "start", "end", batch=False)
            assert [numbers(one.result(60), "SUM") for one in (first, second)] == [[1], [2]]


def test_a_start_before_the_end_takes_the_place_of_the_earlier_sequence(launcher, monkeypatch):
    """Four sequences have the four places. One of them starts again when no request of it is left to come, and shares the batches of the others."""
    import tritonclient.grpc as triton_grpc

    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "16")
    repository = launcher.scratch / "sequences_again"
    put(repository, "direct_4", DIRECT, batch=4)
    lines = [(1, [1, 3]), (2, [11, 12, 12, 13]), (3, [11, 12, 12, 13]), (4, [11, 12, 12, 13]), (1, [1000, 1001])]
    answers = queue.Queue()
    with launcher.running("sequences_again", repository=repository) as server, triton_grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for at, (id, values) in enumerate(lines):
            for turn, value in enumerate(values):
                given = triton_grpc.InferInput("IN", [1, 1], "INT32")
                given.set_data_from_numpy(np.array([[value]], np.int32))
                flags = {"sequence_start": turn == 0, "sequence_end": at > 0 and turn == len(values) - 1}
                client.async_stream_infer("direct_4", [given], request_id=str(at), sequence_id=id, **flags)
        found = {}
        for _ in range(16):
            result, error = answers.get(timeout=30)
            assert error is None, error
            found.setdefault(int(result.get_response().id), []).extend(result.as_numpy("SUM").reshape(-1).tolist())
        batches = http_call(server.http, "GET", "/v2/models/direct_4/stats").json["model_stats"][0]["batch_stats"]
    assert found == {0: [1, 4], **{at: [11, 23, 35, 48] for at in (1, 2, 3)}, 4: [1000, 2001]}
    assert [(one["batch_size"], one["compute_infer"]["count"]) for one in batches] == [(4, 4)]
