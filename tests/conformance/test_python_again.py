"""Does a request run again that its model wants to see again, and only where the model may want that?"""

import json
import pathlib
import queue
import re
import socket
import threading
import time

import numpy as np
import pytest
import python_catalogue
import tritonclient.grpc as grpc_client
from catalogue import Tensor
from clients import differs, http_call
from tritonclient.utils import InferenceServerException

CONTROLS = (
    'control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] }, '
    '{ name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] }, '
    '{ name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] }, '
    '{ name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]'
)
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
MODELS = {
    "direct": f"sequence_batching {{ iterative_sequence: true {CONTROLS} }}",
    "oldest": f"sequence_batching {{ iterative_sequence: true oldest {{ max_candidate_sequences: 4 }} {CONTROLS} }}",
    "decoupled": DECOUPLED + f"sequence_batching {{ iterative_sequence: true {CONTROLS} }}",
    "sequences": f"sequence_batching {{ {CONTROLS} }}",
    "plain": "",
    "plain_decoupled": DECOUPLED,
}
ITERATIVE = ["direct", "oldest"]
NOT_CONFIGURED = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a flag."
)
TIMEOUT_S = 60


def put_documented(repository) -> None:
    """The example of docs/python-advanced.md."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "python-advanced.md").read_text()
    code, config = re.search(r"```python\n(import triton_python_backend_utils.*?)```\n\n```protobuf\n(.*?)```", text, re.DOTALL).groups()
    version = repository / "documented" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (version.parent / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def server(launcher):
    if any(launcher.urls):
        pytest.skip("needs a server of its own")
    repository = launcher.copy_of("python_again")
    given = (Tensor("TIMES", "INT32", (1,)), Tensor("HOW", "BYTES", (1,)))
    for name, extra in MODELS.items():
        model = python_catalogue.python(name, "again", given, (Tensor("SAID", "BYTES", (1,)),), max_batch=4, extra=extra)
        python_catalogue.put(repository, model)
    put_documented(repository)
    with launcher.running("python_again", "--exit-timeout-secs=1", repository=repository) as found:
        yield found


@pytest.fixture
def client(server):
    with grpc_client.InferenceServerClient(server.grpc) as found:
        yield found


def inputs(times: int, how: str = ""):
    made = [grpc_client.InferInput("TIMES", [1, 1], "INT32"), grpc_client.InferInput("HOW", [1, 1], "BYTES")]
    made[0].set_data_from_numpy(np.array([[times]], np.int32))
    made[1].set_data_from_numpy(np.array([[how.encode()]], np.object_))
    return made


def infer(client, model: str, times: int, how: str = "", **more):
    """What the model was told in each run: the request's flags, START, END, READY; and whether there was a correlation id."""
    answer = client.infer(model, inputs(times, how), client_timeout=TIMEOUT_S, **more)
    return json.loads(answer.as_numpy("SAID").reshape(-1)[0])


def refused(client, model: str, *args, **more) -> str:
    with pytest.raises(InferenceServerException) as caught:
        infer(client, model, *args, **more)
    return caught.value.message()


FIRST, LATER = [1, 1, 0, 1], [0, 0, 0, 1]


@pytest.mark.parametrize("model", ITERATIVE)
def test_a_request_runs_until_it_is_answered(client, model):
    for times in (1, 2, 5):
        assert infer(client, model, times) == [[FIRST] + [LATER] * (times - 1), True]


@pytest.mark.parametrize("model", ITERATIVE)
def test_a_sequence_of_the_clients_is_over_with_the_request(client, model):
    assert infer(client, model, 3, sequence_id=77, sequence_start=True) == [[FIRST, LATER, LATER], True]
    text = refused(client, model, 2, sequence_id=77)
    assert "must specify the START flag on the first request of the sequence" in text and "77" in text
    assert infer(client, model, 1, sequence_id=78, sequence_start=True, sequence_end=True) == [[[3, 1, 1, 1]], True]
    assert infer(client, model, 2, sequence_id=77, sequence_start=True) == [[FIRST, LATER], True]


@pytest.mark.parametrize("model", ITERATIVE)
def test_wrong_uses_of_rescheduling_are_refused(client, model):
    text = refused(client, model, 3, "keep")
    assert text.endswith(
        "Expected a None object in the execute function return list for reschduled request, found type "
        "'<class 'c_python_backend_utils.InferenceResponse'>'."
    )
    # It kept what it noted of the first run.
    assert "the second time is one too many" in refused(client, model, 3, "raise")
    assert infer(client, model, 2) == [[FIRST, LATER], True]


def test_sequences_of_many_clients_run_beside_each_other(server):
    times = [1 + at % 7 for at in range(60)]
    found: "queue.Queue[tuple[int, object]]" = queue.Queue()

    def one(at: int) -> None:
        with grpc_client.InferenceServerClient(server.grpc) as own:
            try:
                found.put((at, infer(own, ITERATIVE[at % 2], times[at])))
            except InferenceServerException as error:
                found.put((at, error))

    threads = [threading.Thread(target=one, args=(at,)) for at in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = dict(found.get() for _ in threads)
    assert [len(answers[at][0]) for at in range(60)] == times, answers


class Stream:
    """The responses of a decoupled model, until the final one."""

    def __init__(self, client):
        self.client, self.received = client, queue.Queue()
        client.start_stream(lambda result, error: self.received.put(error or result))

    def infer(self, model: str, times: int, how: str = "") -> list[str]:
        self.client.async_stream_infer(model, inputs(times, how), enable_empty_final_response=True)
        said = []
        while True:
            one = self.received.get(timeout=TIMEOUT_S)
            if isinstance(one, Exception):
                return [*said, one.message()]
            answer = one.get_response()
            said += [one.as_numpy("SAID").reshape(-1)[0].decode()] if answer.outputs else []
            if answer.parameters["triton_final_response"].bool_param:
                return said


@pytest.fixture
def stream(client):
    yield Stream(client)
    client.stop_stream(cancel_requests=True)


def test_a_decoupled_model_answers_in_each_run(stream):
    for times in (1, 4, 20):
        assert stream.infer("decoupled", times) == [str(at + 1) for at in range(times)]
    assert "the second time is one too many" in stream.infer("decoupled", 3, "raise")[-1]
    assert stream.infer("decoupled", 2) == ["1", "2"]


@differs("2.51 lets the client wait for ever", run=False)
@pytest.mark.parametrize("model", ["plain", "sequences"])
def test_models_without_iterative_sequences_cannot_reschedule(client, model):
    more = {"sequence_id": 5, "sequence_start": True} if model == "sequences" else {}
    assert NOT_CONFIGURED in refused(client, model, 2, **more)
    assert NOT_CONFIGURED in refused(client, model, 4, **more), "the model goes on"


@differs("2.51 lets the client wait for ever", run=False)
def test_decoupled_models_without_iterative_sequences_cannot_reschedule(stream):
    said = stream.infer("plain_decoupled", 2)
    assert said[0] == "1" and NOT_CONFIGURED in said[1]


@differs("2.51 leaves the process dead", run=False)
def test_a_process_that_dies_in_a_later_run(client):
    assert "is not healthy" in refused(client, "direct", 3, "die")
    assert infer(client, "direct", 3) == [[FIRST, LATER, LATER], True]


@differs("2.51 goes on with it", run=False)
@pytest.mark.parametrize("model", ITERATIVE)
def test_a_client_that_leaves_ends_what_would_run_for_ever(server, client, model):
    with pytest.raises(InferenceServerException):
        client.infer(model, inputs(10**9), client_timeout=0.5)
    deadline = time.monotonic() + TIMEOUT_S

    def pending() -> int:
        page = http_call(server.metrics, "GET", "/metrics").body.decode()
        count = [line for line in page.splitlines() if line.startswith(f'nv_inference_request_failure{{model="{model}",reason="CANCELED"')]
        return int(count[0].split()[-1])

    while pending() == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    executed = executions(server, model)
    time.sleep(0.2)
    assert executions(server, model) == executed, "it runs no more"
    assert infer(client, model, 2) == [[FIRST, LATER], True]


def executions(server, model: str) -> int:
    (stats,) = json.loads(http_call(server.http, "GET", f"/v2/models/{model}/stats").body)["model_stats"]
    return stats["execution_count"]


@differs("2.51 does not count so", run=False)
def test_each_run_is_an_execution_of_one_request(server, client):
    before = executions(server, "oldest")
    infer(client, "oldest", 6)
    assert executions(server, "oldest") - before == 6


@differs("2.51 keeps what the client does not read", run=False)
def test_a_client_that_does_not_read_holds_only_its_own_sequence_back(server, client):
    """Each run sends a response; nobody reads them, so the model does not run ahead."""
    before = executions(server, "decoupled")
    host, port = server.http.split(":")
    body = json.dumps({"TIMES": [1_000_000], "HOW": ["large"]}).encode()
    with socket.create_connection((host, int(port))) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /v2/models/decoupled/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        link.sendall(head.encode() + body)
        count = -1
        while executions(server, "decoupled") != count:
            count = executions(server, "decoupled")
            time.sleep(1)
        assert 1 < count - before < 2000
    deadline = time.monotonic() + TIMEOUT_S
    stream = Stream(client)
    assert stream.infer("decoupled", 2) == ["1", "2"]
    client.stop_stream(cancel_requests=True)
    assert time.monotonic() < deadline


def test_the_example_of_the_documents_counts_down(server):
    with grpc_client.InferenceServerClient(server.grpc) as client:
        given = grpc_client.InferInput("FROM", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[3]], np.int32))
        found = client.infer("documented", [given], sequence_id=7, sequence_start=True, sequence_end=True)
        assert found.as_numpy("LEFT").tolist() == [[0]]
        assert client.is_model_ready("documented")
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    assert 'countdown_steps{model="documented"} 4' in page
