"""What does a client hear of a Python model that answers wrongly, with an error, or by a sender?"""

import json
import queue
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from clients import CODES, Given, Refused, RequestedOutput, differs, fp32, http_call, refuses
from python_setup import do, said
from test_statistics import metrics
from tritonclient.utils import InferenceServerException

WRONG = "Failed to process the request(s) for model 'py_actions_0', message: "
AT = "\n\nAt:\n  "


def well(client) -> None:
    """The model answers the next request."""
    assert said(do(client, "py_actions", "ok", "as before")) == "as before"


VIOLATIONS = [
    ("raise_", "RuntimeError: this model does not want to" + AT),
    ("divide", "ZeroDivisionError: division by zero" + AT),
    ("unicode", "ValueError: grün, 緑, \U0001f7e2" + AT),
    ("text", "Expected a list in the execute return, found type '<class 'str'>'."),
    ("tuple_", "Expected a list in the execute return, found type '<class 'tuple'>'."),
    ("too_few", "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"),
    ("too_many", "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                 "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n"),
    ("wrong_element", "Expected an 'InferenceResponse' object in the execute function return list, found type "
                      "'<class 'str'>'."),
    ("bare_tensor", "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    "'<class 'c_python_backend_utils.Tensor'>'."),
    ("error_text", "TypeError: "),
    ("exits", "SystemExit: 3"),
    ("reads_input", "EOFError: EOF when reading a line"),
    ("no_such_action", "AttributeError: 'TritonPythonModel' object has no attribute 'no_such_action'"),
]  # fmt: skip


# What the configuration does not have; nerite says so in its log (python/tests/test_model_stub.py).
UNDECLARED = [
    ("other_name", {"SAID": ("BYTES", [1])}),
    ("only_other_name", {}),
    ("other_datatype", {"SAID": ("BYTES", [1]), "MORE": ("INT32", [3])}),
    ("other_shape", {"SAID": ("BYTES", [1]), "MORE": ("FP32", [2, 3])}),
]


@pytest.mark.parametrize(("action", "outputs"), UNDECLARED)
def test_outputs_that_the_configuration_does_not_have(python_client, action, outputs):
    found = do(python_client, "py_actions", action).outputs
    assert {name: (one.datatype, list(one.shape)) for name, one in found.items()} == outputs


@pytest.mark.parametrize(("action", "message"), VIOLATIONS)
def test_what_execute_must_not_do(python_client, action, message):
    with refuses("INTERNAL", WRONG + message):
        do(python_client, "py_actions", action)
    well(python_client)


def test_long_texts(python_client):
    assert said(do(python_client, "py_actions", "long_answer")) == "long " * 50_000
    assert said(do(python_client, "py_actions", "ok", "long " * 50_000)) == "long " * 50_000
    if python_client.protocol == "http":  # gRPC clients take no error of that length
        # nerite cuts them after 65,536 characters.
        with refuses("INTERNAL", "long " * 12_000):
            do(python_client, "py_actions", "long_refusal")
        with refuses("INTERNAL", WRONG + "RuntimeError: " + "long " * 12_000):
            do(python_client, "py_actions", "long_error")


@differs("2.51 tries to have that much memory", run=False)
def test_an_output_larger_than_any_memory(python_client):
    with pytest.raises(Refused) as caught:
        do(python_client, "py_actions", "huge_output")
    assert f"{4 << 42} bytes" in caught.value.text, caught.value.text
    assert said(do(python_client, "py_actions", "huge_output", outputs=[RequestedOutput("SAID")])) == "huge"
    well(python_client)


def test_the_lines_that_raised_are_named(python_client):
    with pytest.raises(Refused) as caught:
        do(python_client, "py_actions", "divide")
    lines = caught.value.text.split(AT)[1].split("\n  ")
    assert lines[0].endswith("py_actions/1/model.py(43): divide")
    assert lines[1].rstrip("\n").endswith("py_actions/1/model.py(28): execute")


@differs("2.51 has no such counter", run=False)
def test_the_rows_of_failed_runs_count_as_their_runs_do(python_client, python_server):
    def counted() -> list[float]:
        names = ("nerite_model_run_rows_total", "nv_inference_exec_count", "nv_inference_count")
        found = metrics(python_server)
        return [found[f'{name}{{model="py_actions",version="1"}}'] for name in names]

    before = counted()
    well(python_client)
    with pytest.raises(Refused):
        do(python_client, "py_actions", "raise_")
    assert [after - first for after, first in zip(counted(), before)] == [2, 2, 1]


@differs("2.51 lets the client wait for ever", run=False)
@pytest.mark.parametrize(("model", "action"), [("py_actions", "none"), ("py_senders", "never")])
def test_a_model_that_returns_no_response_fails_the_request(python_client, model, action):
    with pytest.raises(Refused) as caught:
        do(python_client, model, action)
    assert caught.value.status == CODES["INTERNAL"][python_client.protocol == "grpc"]
    well(python_client)


@pytest.mark.parametrize("code", CODES)
def test_errors_of_every_code(python_client, code):
    with refuses(code, "refused, as asked"):
        do(python_client, "py_actions", "error", code)
    well(python_client)


def test_an_error_without_a_code_is_internal(python_client):
    with refuses("INTERNAL", "refused, as asked"):
        do(python_client, "py_actions", "error")
    with refuses("INTERNAL", "refused in spite of it"):
        do(python_client, "py_actions", "error_with_outputs")


# ---------------------------------------------------------------------------------------------- outputs


def outputs(client, action: str, *names: str) -> dict:
    reply = do(client, "py_actions", action, outputs=[RequestedOutput(one) for one in names] or None)
    return {name: (made.datatype, made.shape) for name, made in reply.outputs.items()}


TEXT = ("BYTES", [1])
MADE = [
    ("ok", (), {"SAID": TEXT}),
    ("ok", ("SAID", "MORE"), {"SAID": TEXT}),
    ("more_outputs", (), {"SAID": TEXT, "MORE": ("FP32", [3])}),
    ("more_outputs", ("MORE",), {"MORE": ("FP32", [3])}),
    ("unknown_output", (), {"SAID": TEXT}),
    ("no_outputs", (), {}),
    ("wrong_datatype", (), {"SAID": TEXT, "MORE": ("INT64", [3])}),
    ("wrong_shape", (), {"SAID": TEXT, "MORE": ("FP32", [2, 3, 4])}),
    ("empty_output", (), {"SAID": TEXT, "MORE": ("FP32", [0])}),
    ("strided_output", (), {"SAID": TEXT, "MORE": ("FP32", [5])}),
]


@pytest.mark.parametrize(("action", "names", "expected"), MADE)
def test_outputs_as_the_model_makes_them(python_client, action, names, expected):
    assert outputs(python_client, action, *names) == expected


def test_strided_and_text_outputs_arrive_whole(python_client):
    assert do(python_client, "py_actions", "strided_output").outputs["MORE"].raw == fp32("", [0, 4, 8, 12, 16]).raw
    assert said(do(python_client, "py_actions", "text_output")) == "grün, 緑"


def test_the_last_of_two_outputs_of_one_name_counts(python_client):
    assert said(do(python_client, "py_actions", "same_output_twice")) == "the second"


@differs("2.51 has no response parameters")
def test_parameters_of_a_response(python_client):
    reply = do(python_client, "py_actions", "response_parameters")
    assert reply.parameters == {"text": "some", "number": 7, "truth": True}


# ---------------------------------------------------------------------------------------------- the module


RAISED = [
    ("empty name", "TritonModelException: Tensor name cannot be an empty string."),
    ("no array", "TypeError: "),
    ("complex", "TritonModelException: NumPy dtype is not supported."),
    ("dlpack of strings", "TritonModelException: DLPack does not have support for string tensors."),
    ("dlpack of nothing", "TritonModelException: Provided tensor is not supported. Tensor must be a DLPack capsule"),
    ("not an input", "AttributeError: 'NoneType' object has no attribute 'name'"),
]
RAISED_ANEW = [
    ("dlpack of strides", "TritonModelException: DLPack tensor is not contiguous."),
    ("parameter key", "TritonModelException: Expect parameters keys to have type str, found type"),
    ("parameter value", "TritonModelException: Expect parameters values to have type bool/int/str, found type"),
]


@pytest.mark.parametrize(("what", "text"), RAISED)
def test_what_the_module_refuses(python_client, what, text):
    found = said(do(python_client, "py_actions", "say_what_is_raised", what))
    assert found[: len(text)] == text, found


@differs("2.51 dies of it, or does not know it", run=False)
@pytest.mark.parametrize(("what", "text"), RAISED_ANEW)
def test_what_the_module_refuses_in_newer_versions(python_client, what, text):
    found = said(do(python_client, "py_actions", "say_what_is_raised", what))
    assert found[: len(text)] == text, found


def test_the_functions_in_pure_python(python_client):
    found = json.loads(said(do(python_client, "py_actions", "functions")))
    assert found["packed"] == (b"\x03\0\0\0one\x06\0\0\0zw\xc3\xb6lf\0\0\0\0").hex()
    assert found["back"] == ["one", "zwölf", ""]
    assert found["numpy"] == ["float32", "bool", "object"]
    assert found["types"] == [11, 1, 13] and found["back types"] == ["float32", "bool", "object"]
    assert found["tensor"] == ["NAME", [2, 3], True, "float16"]
    assert found["outputs"] == ["NAME", "SAID"] and found["by name"] == "SAID" and found["missing"] is True
    assert found["errors"] == [False, True, "message"] and found["code"] is True
    assert found["flags"] == [1, 2, 1]


# ---------------------------------------------------------------------------------------------- senders


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("return", "returned"),
        ("at_once", "at once"),
        ("in_two", "in two"),
        ("later", "later, by another thread"),
        ("cancelled", "cancelled: False"),
        ("unsupported_flag", "Unable to send response. Unsupported flag provided."),
        ("no_response", "Inference Response object must be provided when the response flags is set to zero."),
        ("final_first", "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                        "response."),
    ],
)  # fmt: skip
def test_a_sender_in_the_default_mode(python_client, action, text):
    assert said(do(python_client, "py_senders", action)) == text


@pytest.mark.parametrize(("action", "answer"), [("twice", "the first"), ("after_final", "the only one")])
def test_a_second_response_is_refused(python_client, action, answer):
    assert said(do(python_client, "py_senders", action)) == answer
    raised = said(do(python_client, "py_senders", "what_was_raised"))
    assert raised == "Unable to send response. Non-decoupled model cannot send more than one response."


def test_an_error_by_a_sender(python_client):
    with refuses("UNAVAILABLE", "refused by the sender"):
        do(python_client, "py_senders", "error")


# ---------------------------------------------------------------------------------------------- cancelling


def sleep_ms(milliseconds: int) -> Given:
    return Given("MS", "INT32", [1], milliseconds.to_bytes(4, "little"))


def last_ended(client) -> str:
    return said(client.infer("py_sleeping", [sleep_ms(0)]), "WAS")


def test_a_model_sees_that_its_request_was_cancelled(python_server, python_client):
    client = grpc_client.InferenceServerClient(python_server.grpc)
    given = grpc_client.InferInput("MS", [1], "INT32")
    given.set_data_from_numpy(np.array([20_000], np.int32))

    def cancel_after(seconds: float) -> None:
        answers = queue.SimpleQueue()
        running = client.async_infer("py_sleeping", [given], lambda result, error: answers.put(error))
        time.sleep(seconds)
        running.cancel()
        error = answers.get(timeout=60)
        assert isinstance(error, InferenceServerException) and "CANCELLED" in str(error.status())

    check_seen(python_client, cancel_after)
    client.close()


def check_seen(client, cancel_after) -> None:
    """The model sees it. What is cancelled before it comes to the model, on a busy machine, is cancelled later next time."""
    seen = []
    for seconds in (0.5, 2, 8):
        last_ended(client)
        cancel_after(seconds)
        seen.append(last_ended(client))
        if seen[-1] == "cancelled":
            return
    pytest.fail(f"the model's requests ended as: {seen}")


@pytest.mark.parametrize("python_client", ["grpc"], indirect=True)
def test_a_deadline_of_the_client_is_a_cancellation(python_server, python_client):
    request = python_client.request("py_sleeping", [sleep_ms(20_000)])

    def give_up_after(seconds: float) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            python_client.stub.ModelInfer(request, timeout=seconds)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    check_seen(python_client, give_up_after)


# ---------------------------------------------------------------------------------------------- statistics


def counts(client, model: str) -> dict:
    found = client.statistics(model)[0]
    stats = found["inference_stats"]
    return {"executions": found["execution_count"], "inferences": found["inference_count"]} | {
        key: stats[key]["count"] for key in ("success", "fail", "compute_infer")
    }


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("ok", {"executions": 1, "inferences": 1, "success": 1, "fail": 0, "compute_infer": 1}),
        ("error", {"executions": 1, "inferences": 1, "success": 1, "fail": 0, "compute_infer": 1}),
        ("raise_", {"executions": 1, "inferences": 0, "success": 0, "fail": 1, "compute_infer": 0}),
    ],
)
def test_what_counts_as_a_failure(python_client, action, expected):
    before = counts(python_client, "py_actions")
    try:
        do(python_client, "py_actions", action)
    except Refused:
        assert action != "ok"
    deadline = time.monotonic() + 60
    while True:
        after = counts(python_client, "py_actions")
        moved = {key: after[key] - before[key] for key in after}
        if moved == expected or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    assert moved == expected


def test_the_time_of_execute_is_counted(python_server, python_client):
    before = python_client.statistics("py_sleeping")[0]["inference_stats"]["compute_infer"]["ns"]
    python_client.infer("py_sleeping", [sleep_ms(200)])
    deadline = time.monotonic() + 60
    while (after := python_client.statistics("py_sleeping")[0]["inference_stats"]["compute_infer"]["ns"]) == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert after - before >= 190_000_000
    lines = http_call(python_server.metrics, "GET", "/metrics").body.decode()
    assert 'nv_inference_request_success{model="py_sleeping",version="1"}' in lines
