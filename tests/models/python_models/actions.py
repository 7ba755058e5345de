"""Does what ACTION says, most of which is wrong. `ok` and actions done well answer with SAID."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


def said(text):
    return pb_utils.Tensor("SAID", np.array([text], dtype=object))


def response(text):
    return pb_utils.InferenceResponse([said(text)])


def raised(call):
    try:
        call()
    except Exception as error:  # all of them are to be told
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


class TritonPythonModel:
    def execute(self, requests):
        action, argument = self.wish(requests[0])
        return getattr(self, action)(requests, argument)

    def wish(self, request):
        words = pb_utils.get_input_tensor_by_name(request, "ACTION").as_numpy()
        return words[0].decode(), words[1].decode() if len(words) > 1 else ""

    def ok(self, requests, argument):
        return [response(argument or "ok") for _ in requests]

    # What execute must not return.

    def raise_(self, requests, argument):
        raise RuntimeError("this model does not want to")

    def divide(self, requests, argument):
        return [1 / 0]

    def unicode(self, requests, argument):
        raise ValueError("grün, 緑, \U0001f7e2")

    def exits(self, requests, argument):
        raise SystemExit(3)

    def long_error(self, requests, argument):
        raise RuntimeError("long " * 50_000)

    def reads_input(self, requests, argument):
        return [response(input())]

    def none(self, requests, argument):
        return None

    def text(self, requests, argument):
        return "not a list"

    def tuple_(self, requests, argument):
        return (response("in a tuple"),)

    def too_few(self, requests, argument):
        return []

    def too_many(self, requests, argument):
        return [response("one"), response("two")]

    def wrong_element(self, requests, argument):
        return ["not a response"]

    def bare_tensor(self, requests, argument):
        return [said("a tensor alone")]

    # Errors of single requests.

    def long_refusal(self, requests, argument):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("long " * 50_000))]

    def long_answer(self, requests, argument):
        return [response("long " * 50_000)]

    def error(self, requests, argument):
        code = getattr(pb_utils.TritonError, argument) if argument else None
        error = pb_utils.TritonError("refused, as asked", code) if argument else pb_utils.TritonError("refused, as asked")
        return [pb_utils.InferenceResponse(output_tensors=[], error=error)]

    def error_with_outputs(self, requests, argument):
        error = pb_utils.TritonError("refused in spite of it")
        return [pb_utils.InferenceResponse([said("never seen")], error)]

    def error_text(self, requests, argument):
        return [pb_utils.InferenceResponse([], "an error that is a text")]

    # Outputs.

    def more_outputs(self, requests, argument):
        more = pb_utils.Tensor("MORE", np.arange(3, dtype=np.float32))
        return [pb_utils.InferenceResponse([said("and more"), more])]

    def unknown_output(self, requests, argument):
        return [pb_utils.InferenceResponse([said("and a stranger"), pb_utils.Tensor("STRANGER", np.zeros(1))])]

    def no_outputs(self, requests, argument):
        return [pb_utils.InferenceResponse([])]

    def wrong_datatype(self, requests, argument):
        return [pb_utils.InferenceResponse([said("wrong"), pb_utils.Tensor("MORE", np.arange(3, dtype=np.int64))])]

    def wrong_shape(self, requests, argument):
        more = pb_utils.Tensor("MORE", np.zeros((2, 3, 4), np.float32))
        return [pb_utils.InferenceResponse([said("wrong"), more])]

    def empty_output(self, requests, argument):
        more = pb_utils.Tensor("MORE", np.zeros((0,), np.float32))
        return [pb_utils.InferenceResponse([said("empty"), more])]

    def strided_output(self, requests, argument):
        more = pb_utils.Tensor("MORE", np.arange(20, dtype=np.float32)[::4])
        return [pb_utils.InferenceResponse([said("strided"), more])]

    def huge_output(self, requests, argument):
        """Larger than any memory, though the array itself has one element."""
        more = pb_utils.Tensor("MORE", np.broadcast_to(np.zeros(1, np.float32), (1 << 42,)))
        return [pb_utils.InferenceResponse([said("huge"), more])]

    def text_output(self, requests, argument):
        """str elements, which are encoded on the way out."""
        return [pb_utils.InferenceResponse([said("grün, 緑")])]

    def same_output_twice(self, requests, argument):
        return [pb_utils.InferenceResponse([said("the first"), said("the second")])]

    def response_parameters(self, requests, argument):
        parameters = {"text": "some", "number": 7, "truth": True}
        return [pb_utils.InferenceResponse([said("with parameters")], parameters=parameters)]

    # What the module's own functions refuse.

    def say_what_is_raised(self, requests, argument):
        values = {
            "empty name": lambda: pb_utils.Tensor("", np.zeros(1)),
            "no array": lambda: pb_utils.Tensor("NAME", [1, 2]),
            "complex": lambda: pb_utils.Tensor("NAME", np.zeros(1, np.complex64)),
            "dlpack of strings": lambda: said("text").to_dlpack(),
            "dlpack of nothing": lambda: pb_utils.Tensor.from_dlpack("NAME", object()),
            "dlpack of strides": lambda: pb_utils.Tensor.from_dlpack("NAME", np.arange(8)[::2]).as_numpy(),
            "parameter key": lambda: pb_utils.InferenceResponse([], parameters={1: "one"}),
            "parameter value": lambda: pb_utils.InferenceResponse([], parameters={"one": 1.5}),
            "not an input": lambda: pb_utils.get_input_tensor_by_name(requests[0], "NOT_THERE").name(),
            "write to an input": lambda: self.scribble(requests[0]),
        }
        return [response(raised(values[argument]))]

    def scribble(self, request):
        pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()[0] = 7

    def functions(self, requests, argument):
        """The helpers in pure Python."""
        words = np.array([b"one", "zw\u00f6lf".encode(), b""], dtype=object)
        packed = pb_utils.serialize_byte_tensor(words)
        back = pb_utils.deserialize_bytes_tensor(packed)
        tensor = pb_utils.Tensor("NAME", np.zeros((2, 3), np.float16))
        full = pb_utils.InferenceResponse([tensor, said("x")])
        failed = pb_utils.InferenceResponse(error=pb_utils.TritonError("message", pb_utils.TritonError.NOT_FOUND))
        found = {
            "packed": packed.hex(),
            "back": [one.decode() for one in back],
            "numpy": [np.dtype(pb_utils.triton_string_to_numpy(f"TYPE_{one}")).name for one in ("FP32", "BOOL", "STRING")],
            "types": [pb_utils.numpy_to_triton_type(one) for one in (np.float32, np.bool_, np.object_)],
            "back types": [np.dtype(pb_utils.triton_to_numpy_type(one)).name for one in (11, 1, 13)],
            "tensor": [tensor.name(), list(tensor.shape()), tensor.is_cpu(), tensor.as_numpy().dtype.name],
            "outputs": [one.name() for one in full.output_tensors()],
            "by name": pb_utils.get_output_tensor_by_name(full, "SAID").name(),
            "missing": pb_utils.get_output_tensor_by_name(full, "NOT_THERE") is None,
            "errors": [full.has_error(), failed.has_error(), failed.error().message()],
            "code": failed.error().code() == pb_utils.TritonError.NOT_FOUND,
            "flags": [
                pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
                pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            ],
        }
        return [response(json.dumps(found))]

    # Outputs that the configuration does not have.

    def other_name(self, requests, argument):
        return [pb_utils.InferenceResponse([said("named"), pb_utils.Tensor("ELSEWHERE", np.zeros(2, np.float32))])]

    def only_other_name(self, requests, argument):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("ELSEWHERE", np.zeros(2, np.float32))])]

    def other_datatype(self, requests, argument):
        return [pb_utils.InferenceResponse([said("typed"), pb_utils.Tensor("MORE", np.arange(3, dtype=np.int32))])]

    def other_shape(self, requests, argument):
        return [pb_utils.InferenceResponse([said("shaped"), pb_utils.Tensor("MORE", np.zeros((2, 3), np.float32))])]
