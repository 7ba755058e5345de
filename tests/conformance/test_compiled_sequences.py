"""Does a backend in C keep states of sequences, and give requests back to run again, as in Triton?"""

import itertools
import struct
import urllib.request

import numpy as np
import pytest
from clients import fp32, open_client, refuses
from compiled_setup import put, serving

CONTROL = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }"""
SUM = f"""sequence_batching {{{CONTROL}
  state {{ input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [1]
    initial_state {{ name: "ten" data_type: TYPE_FP32 dims: [1] data_file: "ten" }} }} }}"""
TWO = "\ninstance_group { kind: KIND_CPU count: 2 }"
ITERATIVE = f"sequence_batching {{ iterative_sequence: true {CONTROL} }}"

# Sequences of other tests go on.
NUMBERS = itertools.count(100)


@pytest.fixture(scope="module", params=["server", "process"])
def sequence_server(request: pytest.FixtureRequest, launcher):
    """In the server's process, and each instance in a process of its own."""
    is_isolated = request.param == "process"
    if is_isolated and launcher.oracle:
        pytest.skip("Triton has no isolated backends")
    name, flags = ("isolated_sequences", ["--backend-config=sequences,isolated=true"]) if is_isolated else ("compiled_sequences", [])
    repository = launcher.scratch / name
    folder = put(repository, "c_sum", "sum", more=SUM + TWO, backend="sequences")
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "ten").write_bytes(struct.pack("<f", 10))
    same = SUM.replace("state {", "state { use_same_buffer_for_input_output: true ", 1)
    folder = put(repository, "c_same", "sum", more=same, backend="sequences")
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "ten").write_bytes(struct.pack("<f", 10))
    put(repository, "c_stateless", "sum", backend="sequences")
    put(repository, "c_again", "again", more=ITERATIVE, backend="sequences")
    put(repository, "c_never_again", "again", backend="sequences")
    with serving(launcher, name, repository, *flags, sources=("sequences",)) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def sequences(request: pytest.FixtureRequest, sequence_server):
    with open_client(request.param, sequence_server) as found:
        yield found


class Sequence:
    """The requests of one sequence, one after the other."""

    def __init__(self, client, model: str):
        self.client, self.model, self.number, self.is_new = client, model, next(NUMBERS), True

    def infer(self, value: float, end: bool = False, **parameters):
        controls = {"sequence_id": self.number, "sequence_start": self.is_new, "sequence_end": end}
        self.is_new = False
        reply = self.client.infer(self.model, [fp32("IN", [value])], parameters=controls | parameters)
        return reply, float(np.frombuffer(reply.outputs["OUT"].raw, np.float32)[0])

    def sum(self, value: float, **more) -> float:
        return self.infer(value, **more)[1]


def copied(server) -> int:
    """Bytes of states that the server copied to where the next ones are written."""
    if server.oracle:
        return 0
    lines = urllib.request.urlopen(f"http://{server.metrics}/metrics").read().decode().splitlines()
    return sum(int(line.split()[-1]) for line in lines if 'reason="sequence_state"' in line)


def test_a_state_is_what_the_last_request_left(sequences):
    one, other = Sequence(sequences, "c_sum"), Sequence(sequences, "c_sum")
    assert [one.sum(1), other.sum(5), one.sum(2), other.sum(5), one.sum(3, end=True)] == [11, 15, 13, 20, 16]
    assert other.sum(0, end=True) == 20
    # It begins anew.
    one.is_new = True
    assert one.sum(1, end=True) == 11


def test_a_state_that_is_not_updated_stays(sequences):
    one = Sequence(sequences, "c_sum")
    assert [one.sum(1), one.sum(100, skip=True), one.sum(2), one.sum(0, end=True)] == [11, 111, 13, 13]


def test_a_state_that_was_updated_counts_if_the_request_fails(sequences):
    one = Sequence(sequences, "c_sum")
    assert one.sum(1) == 11
    with refuses("INVALID_ARG", "fails after the update on purpose"):
        one.infer(5, fail=True)
    assert one.sum(2, end=True) == 18


def test_a_state_is_written_where_it_is(sequences, sequence_server):
    """Twenty steps of two sequences. Only the initial state, which is everybody's, is copied; a process of its own gets each state anew."""
    before = copied(sequence_server)
    sequences_of = [Sequence(sequences, "c_same"), Sequence(sequences, "c_same")]
    found = [[one.infer(step, adds=True, end=step == 20) for step in range(1, 21)] for one in sequences_of]
    for steps in found:
        assert [value for _, value in steps] == list(itertools.accumulate(range(1, 21), initial=10))[1:]
    if sequence_server.oracle:
        return
    same = [dict(reply.parameters)["same"] for steps in found for reply, _ in steps]
    is_isolated = "isolated" in sequence_server.log.name
    assert same == [0] * 40 if is_isolated else same == ([0] + [1] * 19) * 2
    if not is_isolated:
        assert copied(sequence_server) - before == 2 * 4


def test_only_the_clients_outputs_are_wanted_and_come(sequences):
    reply, _ = Sequence(sequences, "c_sum").infer(1, end=True)
    assert (list(reply.outputs), dict(reply.parameters)["wanted"]) == (["OUT"], 1)


def test_a_state_must_be_configured(sequences):
    one = Sequence(sequences, "c_sum")
    assert one.sum(0) == 10
    with refuses("INVALID_ARG", "state 'nothing' is not a valid state name."):
        one.infer(1, state="nothing")
    with refuses("INVALID_ARG", "unable to add state 'nothing'. State configuration is missing for model 'c_stateless'."):
        sequences.infer("c_stateless", [fp32("IN", [1])], parameters={"state": "nothing"})
    assert one.sum(1, end=True) == 11


@pytest.mark.parametrize("runs", [1, 2, 20])
def test_a_request_runs_again(sequences, runs):
    for _ in range(2):
        reply = sequences.infer("c_again", [fp32("IN", [runs])], id="mine")
        assert (np.frombuffer(reply.outputs["OUT"].raw, np.float32).tolist(), reply.id) == ([runs], "mine")


def test_a_model_without_iterative_sequences_cannot_run_a_request_again(sequences):
    why = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a flag."
    for _ in range(2):
        with refuses("INVALID_ARG", why):
            sequences.infer("c_never_again", [fp32("IN", [2])])
    assert np.frombuffer(sequences.infer("c_never_again", [fp32("IN", [1])]).outputs["OUT"].raw, np.float32).tolist() == [1]
