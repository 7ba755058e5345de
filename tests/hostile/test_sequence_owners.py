"""Can a client read, continue or end a sequence that is another user's, by its correlation id?

The server runs as root. Clients are threads with another effective user: the kernel tells the server that user of their sockets.
"""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np
import pytest
from clients import Given, Refused, http_call
from packets import SessionClient
from test_sequences import OLDEST, put_stateful
from users import as_user

ALICE, BOB, ROOT = 65101, 65102, 0
NO_START = "must specify the START flag on the first request of the sequence"

# It passes each request on to the model `state`, as a request of the same sequence.
ASKS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.ask(request, request.correlation_id(), request.flags()) for request in requests]

    def ask(self, request, sequence, flags):
        asked = pb_utils.InferenceRequest(
            model_name="state", requested_output_names=["SUM"], inputs=request.inputs(), correlation_id=sequence, flags=flags)
        answer = asked.exec()
        return pb_utils.InferenceResponse(answer.output_tensors(), answer.error() if answer.has_error() else None)
"""
# Its clients give the flags as a parameter, because streams over HTTP are of no sequence.
ASKS_DECOUPLED = (
    ASKS
    + """
    def execute(self, requests):
        for request in requests:
            response = self.ask(request, 7, json.loads(request.parameters())["flags"])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
TENSORS = 'input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }'
STEP = 'ensemble_scheduling { step { model_name: "state" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "SUM" value: "SUM" } } }'


def put(repository: pathlib.Path, name: str, config: str, code: str = "") -> None:
    (repository / name / "1").mkdir(parents=True)
    if code:
        (repository / name / "1" / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(f"{TENSORS} {config}")


def models(launcher, name: str) -> pathlib.Path:
    repository = launcher.scratch / name
    zero = 'initial_state { name: "first" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }'
    put_stateful(repository, "state", initial=zero)
    put_stateful(repository, "oldest", batch=4, strategy=OLDEST, initial=zero)
    put(repository, "ensemble", f'platform: "ensemble" {STEP}')
    put(repository, "asks", 'backend: "python"', ASKS)
    put(repository, "asks_decoupled", 'backend: "python" model_transaction_policy { decoupled: true }', "import json\n" + ASKS_DECOUPLED)
    return repository


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 knows sequences by their ids alone")
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nerite-sequences-"))
    folder.chmod(0o755)
    flags = [f"--session-socket={folder / 'session'}", f"--session-allow-uid={ALICE}", f"--session-allow-uid={BOB}"]
    try:
        with launcher.running("sequence_owners", *flags, repository=models(launcher, "sequence_owners")) as found:
            found.session = folder / "session"
            yield found
    finally:
        shutil.rmtree(folder)


class User:
    """A user whose requests are all of sequence 7, each on a connection of its own. It gets sums, and texts of refusals."""

    def __init__(self, uid: int, server):
        self.uid, self.url = uid, server.http

    def add(self, model: str, value: int, start: bool = False, end: bool = False) -> int | str:
        if model == "asks_decoupled":
            return self.add_generating(model, value, start, end)
        data = [[value]] if model == "oldest" else [value]
        tensor = {"name": "IN", "datatype": "INT32", "shape": np.shape(data), "data": data}
        sequence = {"sequence_id": 7, "sequence_start": start, "sequence_end": end}
        answer = as_user(self.uid, lambda: http_call(self.url, "POST", f"/v2/models/{model}/infer", {"parameters": sequence, "inputs": [tensor]}))
        return answer.json["outputs"][0]["data"][0] if answer.status == 200 else answer.error

    def add_generating(self, model: str, value: int, start: bool, end: bool) -> int | str:
        document = {"IN": value, "flags": start + 2 * end}
        answer = as_user(self.uid, lambda: http_call(self.url, "POST", f"/v2/models/{model}/generate_stream", document))
        event = json.loads(answer.body.removeprefix(b"data: "))
        return event["SUM"] if "SUM" in event else event["error"]


@pytest.mark.parametrize("model", ["state", "oldest", "ensemble", "asks", "asks_decoupled"])
def test_two_users_with_one_id_have_a_sequence_each(server, model):
    """A nested request and a step of an ensemble are of the caller's sequence, from the first request of the model's process on."""
    alice, bob, root = (User(uid, server) for uid in (ALICE, BOB, ROOT))
    assert alice.add(model, 1, start=True) == 1
    for stranger in (bob, root):
        assert NO_START in stranger.add(model, 10)
        assert NO_START in stranger.add(model, 10, end=True)
    assert root.add(model, 1000, start=True, end=True) == 1000
    assert bob.add(model, 100, start=True) == 100
    assert [alice.add(model, 2), bob.add(model, 200)] == [3, 300]
    assert bob.add(model, 300, end=True) == 600
    assert NO_START in bob.add(model, 400)
    assert alice.add(model, 3, end=True) == 6


def test_a_user_reaches_its_sequence_by_every_way(server):
    """Directly, by a model that asks, by an ensemble, and in a session."""
    alice, bob = User(ALICE, server), User(BOB, server)
    assert [alice.add("state", 1, start=True), bob.add("state", 100, start=True)] == [1, 100]
    assert [alice.add("asks", 2), bob.add("ensemble", 200)] == [3, 300]
    assert [alice.add("ensemble", 3), bob.add("asks", 300)] == [6, 600]
    assert bob.add("asks_decoupled", 400, end=True) == 1000
    with contextlib.closing(as_user(BOB, lambda: SessionClient(server.session))) as client:
        given = [Given("IN", "INT32", [1], np.array([4], np.int32).tobytes())]
        with pytest.raises(Refused) as caught:
            client.infer("state", given, parameters={"sequence_id": 7})
        assert NO_START in caught.value.text
    with contextlib.closing(as_user(ALICE, lambda: SessionClient(server.session))) as client:
        reply = client.infer("state", given, parameters={"sequence_id": 7, "sequence_end": True})
    assert np.frombuffer(reply.outputs["SUM"].raw, np.int32) == [10]
    assert NO_START in alice.add("state", 5)


@pytest.fixture(scope="module")
def triton_way(launcher, server):
    repository = models(launcher, "sequences_of_all")
    for unused in ("oldest", "asks_decoupled"):
        shutil.rmtree(repository / unused)
    with launcher.running("sequences_of_all", "--sequence-scope=all", repository=repository) as found:
        yield found


def test_the_operator_may_share_all_sequences_as_in_triton(triton_way):
    alice, bob, root = (User(uid, triton_way) for uid in (ALICE, BOB, ROOT))
    assert [alice.add("state", 1, start=True), bob.add("state", 2), root.add("asks", 3)] == [1, 3, 6]
    assert bob.add("ensemble", 4, end=True) == 10
    assert NO_START in alice.add("state", 5)
