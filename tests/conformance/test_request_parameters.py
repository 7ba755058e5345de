"""Do the parameters of a request reach the model whatever schedules it?"""

import concurrent.futures
import json
import pathlib

import numpy as np
import pytest
from clients import HttpClient, differs, http_infer, int32, open_client

# Answers the parameters of each request, and how many requests ran with it.
MODEL = """\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        def answer(request):
            seen = numpy.array([[request.parameters().encode()]], object)
            return [pb_utils.Tensor("SEEN", seen), pb_utils.Tensor("RAN", numpy.array([[len(requests)]], numpy.int32))]

        return [pb_utils.InferenceResponse(answer(request)) for request in requests]
"""
TENSORS = """\
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output [ { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }, { name: "RAN" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
START = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
MAPS = "".join(f'{kind}_map {{ key: "{name}" value: "{name}" }} ' for kind, name in (("input", "IN"), ("output", "SEEN"), ("output", "RAN")))
SCHEDULED = {
    "batched": "dynamic_batching { max_queue_delay_microseconds: 20000000 preferred_batch_size: [ 4 ] }",
    "direct": f"sequence_batching {{ direct {{ }} {START} }}",
    "oldest": f"sequence_batching {{ oldest {{ max_candidate_sequences: 4 }} {START} }}",
}
GIVEN = {"colour": "green", "number": 3, "is_last": True}


def put(repository: pathlib.Path, name: str, settings: str, model: str | None = None) -> None:
    (repository / name / "1").mkdir(parents=True)
    if model is not None:
        (repository / name / "1" / "model.py").write_text(model)
    (repository / name / "config.pbtxt").write_text(TENSORS + settings)


@pytest.fixture(scope="module")
def parameters_server(launcher):
    repository = launcher.scratch / "parameters"
    for name, settings in SCHEDULED.items():
        put(repository, name, f'backend: "python" instance_group [ {{ count: 1 kind: KIND_CPU }} ] {settings}', MODEL)
    put(repository, "plain", 'backend: "python"', MODEL)
    put(repository, "ensemble", f'platform: "ensemble" ensemble_scheduling {{ step {{ model_name: "plain" model_version: -1 {MAPS} }} }}')
    with launcher.running("parameters", repository=repository) as found:
        yield found


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request, parameters_server):
    with open_client(request.param, parameters_server) as found:
        yield found


def seen(reply) -> dict:
    return json.loads(reply.outputs["SEEN"].raw[4:])


def test_the_requests_of_a_batch_keep_their_parameters_apart(client):
    """The batcher waits for four of them."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(client.infer, "batched", [int32("IN", [[n]])], parameters=GIVEN | {"number": n}) for n in range(4)]
        replies = [future.result() for future in futures]
    assert [np.frombuffer(reply.outputs["RAN"].raw, np.int32).tolist() for reply in replies] == [[4]] * 4
    assert [seen(reply) for reply in replies] == [GIVEN | {"number": n} for n in range(4)]


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_each_request_of_a_sequence_has_its_own_parameters(client, model):
    flags = [{"sequence_start": True}, {}, {"sequence_end": True}]
    for number, flag in enumerate(flags):
        reply = client.infer(model, [int32("IN", [[1]])], parameters={"sequence_id": 7, "number": number} | flag)
        # Those of the sequence are no parameters of the model's.
        assert seen(reply) == {"number": number}


def test_the_steps_of_an_ensemble_get_its_parameters(client):
    assert seen(client.infer("ensemble", [int32("IN", [[1]])], parameters=dict(GIVEN))) == GIVEN


@pytest.fixture(scope="module")
def forwarding(launcher):
    repository = launcher.scratch / "forwarding"
    put(repository, "plain", 'backend: "python"', MODEL)
    with launcher.running("forwarding", "--http-header-forward-pattern=(?i)(x-.*|priority|triton_.*)", repository=repository) as found:
        yield found


def infer_with(server, headers: dict[str, str]):
    given = [int32("IN", [[1]])]
    document = json.dumps(HttpClient(server.http).document(given)).encode()
    return http_infer(server.http, "plain", document, given[0].raw, {"Inference-Header-Content-Length": str(len(document))} | headers)


def test_a_header_that_is_forwarded_is_a_parameter(forwarding):
    answer = infer_with(forwarding, {"x-colour": "green", "y-colour": "red"})
    assert answer.status == 200 and b'{"x-colour":"green"}' in answer.body, answer


@differs("2.51 keeps the case of a header's name")
def test_a_header_is_a_parameter_under_its_name_in_lower_case(forwarding):
    answer = infer_with(forwarding, {"X-Colour": "green"})
    assert answer.status == 200 and b'{"x-colour":"green"}' in answer.body, answer


@differs("2.51 forwards reserved headers as well")
@pytest.mark.parametrize("name", ["priority", "triton_grpc_error"])
def test_a_reserved_header_that_would_be_forwarded_is_refused_over_http(forwarding, name):
    answer = infer_with(forwarding, {name: "1"})
    assert (answer.status, answer.error) == (400, f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
