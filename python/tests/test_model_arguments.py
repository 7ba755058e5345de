"""Are arguments of a wrong type refused as compiled code refuses them?

Each function of Triton's module is compiled with pybind11, which raises ``TypeError`` before the function runs.
"""

from functools import partial

import numpy as np
import pytest

import nerite.model.utils as pb_utils
from nerite.model import answer, native, nested

ONE = pb_utils.Tensor("IN", np.zeros(1))
CPU = pb_utils.TRITONSERVER_MEMORY_CPU


class Index:
    """An integer of another library."""

    def __index__(self):
        return 7


def request(**changed):
    given = {"inputs": [ONE], "requested_output_names": ["OUT"], "model_name": "m", **changed}
    return pb_utils.InferenceRequest(**{name: value for name, value in given.items() if value is not Index})


def response(*given, **named):
    return pb_utils.InferenceResponse(*given, **named)


REFUSED = [
    ("a name that is None", partial(request, requested_output_names=[None])),
    ("a name that is a number", partial(request, requested_output_names=[1])),
    ("names that are one string", partial(request, requested_output_names="OUT")),
    ("names that are a set", partial(request, requested_output_names={"OUT"})),
    ("names that are None", partial(request, requested_output_names=None)),
    ("no names", partial(request, requested_output_names=Index)),
    ("an input that is an array", partial(request, inputs=[np.zeros(1)])),
    ("a wrong input after one that is None", partial(request, inputs=[None, 1])),
    ("inputs that are a tensor", partial(request, inputs=ONE)),
    ("inputs that are None", partial(request, inputs=None)),
    ("a model that is None", partial(request, model_name=None)),
    ("a model that is a number", partial(request, model_name=5)),
    ("an id that is a number", partial(request, request_id=5)),
    ("an id that is None", partial(request, request_id=None)),
    ("a correlation id that is None", partial(request, correlation_id=None)),
    ("a version that is a string", partial(request, model_version="1")),
    ("a version that is a float", partial(request, model_version=1.0)),
    ("a version of more than 64 bits", partial(request, model_version=1 << 63)),
    ("flags below 0", partial(request, flags=-1)),
    ("flags of more than 32 bits", partial(request, flags=1 << 32)),
    ("flags that are a string", partial(request, flags="1")),
    ("a timeout below 0", partial(request, timeout=-1)),
    ("a timeout that is a float", partial(request, timeout=1e6)),
    ("memory that is its type", partial(request, preferred_memory=CPU)),
    ("memory that is None", partial(request, preferred_memory=None)),
    ("a trace that is None", partial(request, trace=None)),
    ("a trace that is a string", partial(request, trace="00-1")),
    ("flags that change to a string", lambda: request().set_flags("1")),
    ("release flags that are None", lambda: request().set_release_flags(None)),
    ("a string for decoupled", lambda: request().exec(decoupled="yes")),
    ("None for decoupled", lambda: request().exec(None)),
    ("outputs that are a tensor", partial(response, ONE)),
    ("outputs that are None", partial(response, None)),
    ("outputs that are a dictionary", partial(response, {"OUT": ONE})),
    ("an output that is an array", partial(response, [np.zeros(1)])),
    ("a wrong output after one that is None", partial(response, [None, 1])),
    ("an error that is a text", partial(response, [], "an error")),
    ("an error that is an exception", partial(response, error=ValueError("an error"))),
    ("a tensor of a list", partial(pb_utils.Tensor, "a", [1, 2])),
    ("a tensor whose name is None", partial(pb_utils.Tensor, None, np.zeros(1))),
    ("a tensor whose name is no UTF-8", partial(pb_utils.Tensor, b"\xff", np.zeros(1))),
    ("a name of another type for DLPack", partial(pb_utils.Tensor.from_dlpack, 1, np.zeros(1))),
    ("a message that is None", partial(pb_utils.TritonError, None)),
    ("a message that is an exception", partial(pb_utils.TritonError, ValueError("no"))),
    ("a code that is a number", partial(pb_utils.TritonError, "no", 1)),
    ("a code that is None", partial(pb_utils.TritonError, "no", None)),
    ("a memory type that is a number", partial(pb_utils.PreferredMemory, 1)),
    ("a device that is a string", partial(pb_utils.PreferredMemory, CPU, "0")),
    ("flags of a response that are a string", partial(answer.check_send, None, "1")),
    ("flags of a response that are a float", partial(answer.check_send, response(), 1.0)),
    ("a response that is a tensor", partial(answer.check_send, ONE, 0)),
    ("a line that is a number", partial(pb_utils.Logger.log, 5)),
    ("a level that is a number", partial(pb_utils.Logger.log, "a", 1)),
    ("a family whose kind is a string", partial(pb_utils.MetricFamily, "a", "b", "COUNTER")),
    ("a family without a kind", partial(pb_utils.MetricFamily, "a", "b")),
    ("a model to load that is None", partial(pb_utils.load_model, None)),
    ("a configuration that is a dictionary", partial(pb_utils.load_model, "m", {})),
    ("a model to unload that is a number", partial(pb_utils.unload_model, 1)),
    ("dependents that are a string", partial(pb_utils.unload_model, "m", "yes")),
    ("a version to ask for that is a number", partial(pb_utils.is_model_ready, "m", 1)),
    ("objects that models only meet", native.Metric),
]


@pytest.mark.parametrize("call", [call for _, call in REFUSED], ids=[name for name, _ in REFUSED])
def test_arguments_of_a_wrong_type_are_refused(call):
    with pytest.raises(TypeError) as raised:
        call()
    assert "incompatible" in str(raised.value) or "No constructor defined" in str(raised.value)


ACCEPTED = [
    ("sequences that are no lists", lambda: request(inputs=(ONE,), requested_output_names=("OUT",)).requested_output_names() == {"OUT"}),
    ("texts that are bytes", lambda: request(model_name=b"m", request_id=b"r").request_id() == "r"),
    ("integers of numpy", lambda: request(flags=np.int64(2), timeout=np.uint8(3)).timeout() == 3),
    ("integers of other libraries", lambda: request(flags=Index()).flags() == 7),
    ("a sequence that is a string", lambda: request(correlation_id="seven").correlation_id() == "seven"),
    ("the largest numbers", lambda: request(flags=(1 << 32) - 1, timeout=(1 << 64) - 1).timeout() == (1 << 64) - 1),
    ("memory of a type", lambda: request(preferred_memory=pb_utils.PreferredMemory(CPU, 1)).timeout() == 0),
    ("the trace of another request", lambda: request(trace=request().trace()).trace().get_context() is None),
    ("outputs that are a tuple", lambda: response((ONE,)).output_tensors() == [ONE]),
    ("a name that is bytes", lambda: pb_utils.Tensor(b"a", np.zeros(1)).name() == "a"),
    ("a message that is bytes", lambda: pb_utils.TritonError(b"no").message() == "no"),
    ("flags that are true", lambda: answer.check_send(None, True) is None),
]


@pytest.mark.parametrize("call", [call for _, call in ACCEPTED], ids=[name for name, _ in ACCEPTED])
def test_arguments_that_can_be_converted_are_accepted(call):
    assert call()


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (partial(request, correlation_id=1.5), pb_utils.TritonModelException, "Correlation ID must be integer or string"),
        (partial(request, correlation_id=-1), RuntimeError, "Unable to cast Python instance of type <class 'int'>"),
        (partial(request, parameters=[1]), pb_utils.TritonModelException, "Expect N8pybind114dictE, got <class 'list'>"),
        (partial(request, inputs=[None]), pb_utils.TritonModelException, "should not be empty"),
        (partial(response, [None]), pb_utils.TritonModelException, "Output tensor for inference response should not be empty."),
        (
            partial(pb_utils.load_model, "m", "", [1]),
            pb_utils.TritonModelException,
            "failed to load model 'm', files should be a dictionary of file paths and file contents",
        ),
        (partial(pb_utils.load_model, "m", "", {1: b""}), RuntimeError, "Unable to cast Python instance of type <class 'int'>"),
        (partial(pb_utils.load_model, "m", "", {"a": "b"}), RuntimeError, "Unable to cast Python instance of type <class 'str'>"),
    ],
)
def test_values_that_the_function_itself_refuses(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    assert str(raised.value).startswith(words) or words in str(raised.value)


def test_the_error_shows_the_types_and_the_call():
    with pytest.raises(TypeError) as raised:
        request(requested_output_names=[None])
    message = str(raised.value)
    assert message.startswith("__init__(): incompatible constructor arguments. The following argument types are supported:\n    1. ")
    assert "requested_output_names: List[str]" in message
    assert "Invoked with: kwargs: inputs=[" in message and "requested_output_names=[None]" in message and "model_name='m'" in message


@pytest.mark.parametrize(
    "text, number", [("", None), ("1", 1), (" 12", 12), ("3abc", 3), ("0", 0), ("+4", 4), ("a", "stol"), ("-1", ""), ("9" * 20, "stol")]
)
def test_versions_are_read_as_tritons_server_reads_them(text, number):
    if not isinstance(number, str):
        assert nested._version(text) == number
        return
    with pytest.raises(pb_utils.TritonModelException) as raised:
        nested._version(text)
    details = f" (details: {number})" if number else ""
    assert str(raised.value) == (
        f"Failed to check model readiness: failed to get model version from specified version string '{text}'{details}, "
        "version should be an integral value > 0"
    )
