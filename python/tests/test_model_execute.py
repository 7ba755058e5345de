"""Does a batch become responses by the rules of Triton's default mode, in Triton's words, and without copies?"""

import json

import numpy as np
import pytest
from model_server import IDENTITY, OBEDIENT, given, obey, placed, read_text, serialised, start  # noqa: F401

from nerite.model import batch
from nerite.model.memory import Memory

NO_RESPONSE = "the model returned None for this request, and its response sender sent no response"


@pytest.mark.parametrize(
    "code, error",
    [
        ("raise ValueError('bad')", "ValueError: bad\n\nAt:\n  code(1): <module>\n  {file}(17): execute\n"),
        (
            "def f():\n  raise KeyError('k')\nf()",
            "KeyError: 'k'\n\nAt:\n  code(2): f\n  code(3): <module>\n  {file}(17): execute\n",
        ),
        ("raise SystemExit(4)", "SystemExit: 4\n\nAt:\n  code(1): <module>\n  {file}(17): execute\n"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: <EMPTY MESSAGE>\n\nAt:\n  code(1): <module>\n  {file}(17): execute\n"),
        (
            "pb_utils.Tensor('', np.zeros(1))",
            "TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n  code(1): <module>\n  {file}(17): execute\n",
        ),
        (
            "pb_utils.Tensor('a', [1, 2])",
            "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:\n"
            "    1. c_python_backend_utils.Tensor(arg0: str, arg1: numpy.ndarray)\n\nInvoked with: 'a', [1, 2]\n\n"
            "At:\n  code(1): <module>\n  {file}(17): execute\n",
        ),
        (
            "pb_utils.InferenceResponse(error='x')",
            "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:\n"
            "    1. c_python_backend_utils.InferenceResponse(output_tensors: List[c_python_backend_utils.Tensor] = [], "
            "error: c_python_backend_utils.TritonError = None, parameters: object = None)\n\nInvoked with: kwargs: error='x'\n\n"
            "At:\n  code(1): <module>\n  {file}(17): execute\n",
        ),
        (
            "pb_utils.InferenceResponse([None])",
            "TritonModelException: Output tensor for inference response should not be empty.\n\nAt:\n  code(1): <module>\n"
            "  {file}(17): execute\n",
        ),
        ("ret = 5", "Expected a list in the execute return, found type '<class 'int'>'."),
        ("ret = ()", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        (
            "ret = []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n",
        ),
        ("ret = [1]", "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'."),
    ],
)
def test_a_model_that_breaks_a_rule_fails_its_batch(start, code, error):  # noqa: F811
    server = start(OBEDIENT)
    expected = error.format(file=server.version_dir / "model.py")
    assert obey(server, code) == {"error": expected}
    assert read_text(server, obey(server, "out = 'alive'")) == "alive"


def test_a_model_without_execute_says_so(start):  # noqa: F811
    server = start("class TritonPythonModel:\n    pass\n")
    path = server.version_dir / "model.py"
    assert server.execute(server.request())["error"] == f"Python model {path} does not implement `execute` method."


SEND = "s = request.get_response_sender(); "
ANSWERED = {"outputs": [["OUT", "BYTES", [1], 1, 64, 5]], "parameters": {}}
CLOSED = "Unable to send response. Response sender has been closed."
SECOND = "Unable to send response. Non-decoupled model cannot send more than one response."


@pytest.mark.parametrize(
    "code, response",
    [
        ("ret = None", {"error": ["INTERNAL", NO_RESPONSE]}),
        ("ret = [None]", {"error": ["INTERNAL", NO_RESPONSE]}),
        ("self.kept = request.get_response_sender(); ret = [None]", {"error": ["INTERNAL", NO_RESPONSE]}),
        (SEND + "s.send(text('a')); ret = None", ANSWERED),
        (SEND + "s.send(text('a')); ret = [None]", ANSWERED),
        (SEND + "s.send(text('a'), 1); ret = [None]", ANSWERED),
        (SEND + "s.send(text('a')); s.send(flags=1); ret = [None]", ANSWERED),
        (SEND + "s.send(text('a')); ret = [text('second')]", ANSWERED),
        (SEND + "threading.Timer(0.1, s.send, [text('a')]).start(); del s; ret = None", ANSWERED),
        ("ret = [pb_utils.InferenceResponse()]", {"outputs": [], "parameters": {}}),
        (
            "ret = [pb_utils.InferenceResponse([], None, {'a': 'ü', 'b': True, 'c': 3})]",
            {"outputs": [], "parameters": {"a": "ü", "b": True, "c": 3}},
        ),
        ("T = pb_utils.TritonError; ret = [pb_utils.InferenceResponse(error=T('mine'))]", {"error": ["INTERNAL", "mine"]}),
        (
            "T = pb_utils.TritonError; ret = [pb_utils.InferenceResponse([], T('mine', T.NOT_FOUND))]",
            {"error": ["NOT_FOUND", "mine"]},
        ),
        (
            "T = lambda n: pb_utils.Tensor('OUT', np.full(n, n, np.int8)); ret = [pb_utils.InferenceResponse([T(9), T(5)])]",
            {"outputs": [["OUT", "INT8", [5], 1, 64, 5]], "parameters": {}},
        ),
        # What nobody asked for is left out.
        ("ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OTHER', np.zeros(3))])]", {"outputs": [], "parameters": {}}),
        (
            "class Odd:\n  def __str__(self): raise ValueError('odd')\n"
            "ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([Odd()]))])]",
            {"error": ["INTERNAL", "output 'OUT' could not be written: ValueError: odd"]},
        ),
    ],
)
def test_each_request_gets_its_response(start, code, response):  # noqa: F811
    server = start(OBEDIENT)
    if "error" in response and "mine" not in response["error"][1]:
        # An error of this package's names the request.
        response = {"error": [response["error"][0], f"[request id: mine] {response['error'][1]}"]}
    assert obey(server, code, id="mine")["responses"] == [response]


@pytest.mark.parametrize(
    "code, error",
    [
        ("s.send(flags=2)", "Unable to send response. Unsupported flag provided."),
        ("s.send()", "Inference Response object must be provided when the response flags is set to zero."),
        ("s.send(flags=1)", "Unable to send response. Non-decoupled model cannot send complete final before sending a response."),
        ("s.send(text('a')); s.send(text('b'))", SECOND),
        ("s.send(text('a'), flags=1); s.send(text('b'))", SECOND),
        ("s.send(text('a'), flags=1); s.send(flags=1)", CLOSED),
    ],
)
def test_a_response_sender_holds_to_the_rules(start, code, error):  # noqa: F811
    server = start(OBEDIENT)
    answer = obey(server, f"{SEND}\ntry: {code}\nexcept pb_utils.TritonModelException as e: self.raised = e; ret = [text(e)]\n")
    assert read_text(server, answer) == ("a" if "send(text" in code else error)
    assert read_text(server, obey(server, "out = self.raised")) == error


def test_a_response_after_the_batch_was_answered_is_refused(start):  # noqa: F811
    server = start(OBEDIENT)
    obey(server, "self.kept = request.get_response_sender(); out = 1")
    code = "try: self.kept.{}\nexcept pb_utils.TritonModelException as e: out = e"
    assert read_text(server, obey(server, code.format("send(text('late'))"))) == SECOND
    assert read_text(server, obey(server, code.format("send(flags=1)"))) == CLOSED
    obey(server, "self.kept = request; 1 / 0")
    assert read_text(server, obey(server, code.format("get_response_sender().send(text('late'))"))) == CLOSED
    late = read_text(server, obey(server, code.format("output_array('OUT', (1,), 'f4')")))
    assert late == "The request has been answered already."


def test_one_request_of_a_batch_may_fail_alone(start):  # noqa: F811
    server = start(OBEDIENT)
    code = "ret = [text('fine'), pb_utils.InferenceResponse(error=pb_utils.TritonError('mine')), None]"
    responses = obey(server, code, count=3)["responses"]
    assert [list(one) for one in responses] == [["outputs", "parameters"], ["error"], ["error"]]
    assert responses[2]["error"] == ["INTERNAL", f"[request id: <id_unknown>] {NO_RESPONSE}"]


def test_what_was_sent_before_the_model_failed_stays_sent(start):  # noqa: F811
    server = start(OBEDIENT)
    first, second = obey(server, SEND + "s.send(text('a'), 1); raise ValueError('bad')", count=2)["responses"]
    assert first == ANSWERED
    code, text = second["error"]
    assert (code, text.splitlines()[0]) == (
        "INTERNAL",
        "Failed to process the request(s) for model 'm_0', message: ValueError: bad",
    )


def test_a_model_sees_what_the_client_said(start):  # noqa: F811
    server = start(OBEDIENT)
    code = (
        "out = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(), "
        "request.requested_output_names(), request.trace().get_context(), [t.name() for t in request.inputs()], "
        "request.inputs()[0].shape(), "
        "request.inputs()[0].triton_dtype(), request.inputs()[0].is_cpu(), request.inputs()[0].as_numpy().tolist()]"
    )
    memory = server.memory(4096)
    inputs = [given(memory, "IN", np.arange(6, dtype=np.int16).reshape(2, 3), "INT16")]
    seen = read_text(server, obey(server, code, inputs, id="me", correlation="seq", flags=3, timeout=77))
    assert eval(seen) == ["me", "seq", 3, 77, {"OUT"}, None, ["IN"], [2, 3], 7, True, [[0, 1, 2], [3, 4, 5]]]
    code = "a = [request.parameters()]; request.set_flags(2); a.append(request.flags()); out = a"
    request = server.request([], [["OUT", None, 0, 0, False]], parameters={"code": code, "n": 1, "f": 0.5, "t": True})
    parameters, flags = eval(read_text(server, server.execute(request)))
    assert json.loads(parameters) == {"code": code, "n": 1, "f": 0.5, "t": True} and flags == 2


DATATYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "INT8": np.int8,
    "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip


def test_tensors_of_every_datatype_and_shape_go_through(start):  # noqa: F811
    server = start(IDENTITY)
    memory = server.memory(1 << 16)
    for datatype, dtype in DATATYPES.items():
        for shape in ([3, 4], [1], [], [2, 0]):
            array = (np.arange(int(np.prod(shape))) % 2).astype(dtype).reshape(shape)
            answer = server.execute(server.request([given(memory, "IN", array, datatype)], [["OUT", 1, 60_000, 500, True]]))
            (output,) = answer["responses"][0]["outputs"]
            assert output == ["OUT", datatype, shape, 1, 60_000, array.nbytes]
            assert (placed(server, output, dtype) == array).all()


def test_memory_that_is_not_aligned_works_too(start):  # noqa: F811
    server = start(IDENTITY)
    memory = server.memory(1000)
    array = np.arange(8, dtype=np.float64)
    memory.put(array.tobytes(), 3)
    answer = server.execute(server.request([["IN", "FP64", [8], 1, 3, 64]], [["OUT", 1, 301, 64, True]]))
    assert (placed(server, answer["responses"][0]["outputs"][0], np.float64) == array).all()


def test_a_segment_may_begin_anywhere_in_its_file(start):  # noqa: F811
    server = start(IDENTITY)
    memory = server.memory(1000, file_offset=12_345)
    array = np.arange(8, dtype=np.float32)
    answer = server.execute(server.request([given(memory, "IN", array)], [["OUT", 1, 500, 64, True]]))
    assert (placed(server, answer["responses"][0]["outputs"][0]) == array).all()


def test_bytes_come_as_bytes_and_go_as_bytes(start):  # noqa: F811
    server = start(IDENTITY)
    memory = server.memory(4096)
    raw = serialised(b"", b"ab\0", "größer".encode())
    one = ["IN", "BYTES", [3, 1], 1, memory.put(raw), len(raw)]
    answer = server.execute(server.request([one], [["OUT", 1, 2048, 100, True]]))
    assert answer["responses"][0]["outputs"] == [["OUT", "BYTES", [3, 1], 1, 2048, len(raw)]]
    assert memory.get(2048, len(raw)) == raw


@pytest.mark.parametrize(
    "array, elements",
    [
        ("np.array(['ab', 'é', b'raw', 5, None, 1.5], dtype=object)", [b"ab", "é".encode(), b"raw", b"5", b"None", b"1.5"]),
        ("np.array(['a', 'bc'], dtype='S3')", [b"a", b"bc"]),
        ("np.array([['a', 'b'], ['c', 'd']], dtype=object).T", [b"a", b"c", b"b", b"d"]),
        ("np.array([], dtype=object)", []),
    ],
)
def test_elements_of_bytes_are_written_as_triton_does(start, array, elements):  # noqa: F811
    server = start(OBEDIENT)
    answer = obey(server, f"ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', {array})])]")
    (output,) = answer["responses"][0]["outputs"]
    raw = serialised(*elements)
    assert output[5] == len(raw)
    if raw:
        assert server.segments[output[3]].get(output[4], output[5]) == raw


@pytest.mark.parametrize(
    "raw, shape, error",
    [
        (b"\5\0\0\0abc", [1], "incomplete string data for {}, expecting string of length 5 but only 3 bytes available"),
        (b"\xff" * 4, [1], "incomplete string data for {}, expecting string of length 4294967295 but only 0 bytes available"),
        (b"\1\0\0\0a\0\0", [2], "incomplete string length indicator for {}, expecting 4 bytes but only 2 bytes available"),
        (serialised(b"a", b"b"), [3], "unexpected number of string elements 2 for {}, expecting 3"),
    ],
)  # fmt: skip
def test_lengths_that_do_not_add_up_fail_their_request_alone(start, raw, shape, error):  # noqa: F811
    server = start(IDENTITY)
    memory = server.memory(4096)
    fine = server.request([given(memory, "IN", np.arange(4, dtype=np.float32))], [["OUT", 1, 1024, 64, True]])
    broken = server.request([["IN", "BYTES", shape, 1, memory.put(raw), len(raw)]], [["OUT", 1, 2048, 64, True]], id="the second")
    unnamed = {**broken, "id": ""}
    responses = server.execute(fine, broken, unnamed)["responses"]
    assert responses[0]["outputs"][0][:2] == ["OUT", "FP32"]
    error = error.format("inference input 'IN'")
    assert responses[1] == {"error": ["INVALID_ARG", f"[request id: the second] {error}"]}
    assert responses[2] == {"error": ["INVALID_ARG", f"[request id: <id_unknown>] {error}"]}
    assert server.execute(broken)["responses"] == [responses[1]]


def test_arrays_that_are_not_contiguous_are_put_in_order(start):  # noqa: F811
    server = start(OBEDIENT)
    for array in ("np.arange(6, dtype=np.float32).reshape(2, 3).T", "np.arange(6, dtype='f4').reshape(3, 2)[::-1]"):
        answer = obey(server, f"ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', {array})])]")
        (output,) = answer["responses"][0]["outputs"]
        assert output[1:3] == ["FP32", [3, 2]]
        assert (placed(server, output) == eval(array)).all()


def test_an_input_is_the_clients_own_memory_and_cannot_be_written(start):  # noqa: F811
    server = start(OBEDIENT)
    memory = server.memory(4096)
    one = given(memory, "IN", np.arange(4, dtype=np.int32), "INT32")
    error = obey(server, "request.inputs()[0].as_numpy()[0] = 9", [one])["error"]
    assert error.startswith("ValueError: assignment destination is read-only; an input's array is the client's own memory, ")
    assert error.split("\n")[1:4] == ["", "At:", "  code(1): <module>"]
    obey(server, "self.kept = request.inputs()[0].as_numpy(); out = 0", [one])
    memory.put(np.int32(77).tobytes(), one[4])
    assert read_text(server, obey(server, "out = self.kept[0]")) == "77"


def test_a_model_that_writes_to_its_inputs_is_told_the_cure_and_can_have_copies(start):  # noqa: F811
    code = "x = request.inputs()[0].as_numpy(); x += 1; out = x.tolist()"
    server = start(OBEDIENT)
    array = np.arange(2, dtype=np.int32)
    error = obey(server, code, [given(server.memory(4096), "IN", array, "INT32")])["error"]
    said, _, where = error.partition("\n\nAt:\n")
    assert said.startswith("ValueError: output array is read-only; ") and where.startswith("  code(1): <module>")
    assert "`x = x / 255`" in said and "set its parameter PRIVATE_INPUTS to 'yes'" in said

    def parameters(value):
        return {"parameters": {"PRIVATE_INPUTS": {"string_value": value}}}

    server = start(OBEDIENT, ready=False)
    assert "ready" in server.initialize(config=parameters("yes"))
    memory = server.memory(4096)
    one = given(memory, "IN", array, "INT32")
    assert read_text(server, obey(server, code, [one])) == "[1, 2]"
    own = obey(server, "x = np.arange(2); x.flags.writeable = False; x += 1", [one])["error"]
    assert own.startswith("ValueError: output array is read-only\n\nAt:\n")
    assert memory.get(one[4], 8) == array.tobytes()
    server = start(OBEDIENT, ready=False)
    error = server.initialize(config=parameters("maybe"))
    assert error == {"error": "Incorrect value for PRIVATE_INPUTS: maybe, expected 'yes' or 'no'"}


def test_memory_that_is_too_small_is_replaced(start):  # noqa: F811
    server = start(IDENTITY)
    memory = server.memory(1 << 16)
    requested = []

    def on_need(index, name, byte_size):
        requested.append((index, name, byte_size))
        return {"at": [server.memory(byte_size).segment, 0, byte_size]}

    server.on_need = on_need
    array = np.arange(100, dtype=np.float32)
    inputs = [given(memory, "IN", array)]
    requests = [
        server.request(inputs, [["OUT", *place]]) for place in ([1, 4096, 400, False], [1, 4096, 399, False], [None, 0, 0, False])
    ]
    responses = server.execute(*requests)["responses"]
    assert requested == [(1, "OUT", 400), (2, "OUT", 400)]
    assert [one["outputs"][0][3] for one in responses] == [1, 2, 3]
    for one in responses:
        assert (placed(server, one["outputs"][0]) == array).all()


def test_client_memory_that_is_too_small_is_reported(start):  # noqa: F811
    server = start(IDENTITY)
    memory = server.memory(1 << 16)
    one = server.request([given(memory, "IN", np.zeros(100, np.float32))], [["OUT", 1, 4096, 399, True]])
    assert server.execute(one)["responses"][0]["outputs"] == [["OUT", "FP32", [100], None, 0, 400]]
    raw = serialised(b"long enough")
    two = server.request([["IN", "BYTES", [1], 1, memory.put(raw), len(raw)]], [["OUT", 1, 4096, 5, True]])
    assert server.execute(two)["responses"][0]["outputs"] == [["OUT", "BYTES", [1], None, 0, len(raw)]]
    assert memory.get(4096, 400) == b"\0" * 400


def test_a_request_whose_output_gets_no_memory_fails_alone(start):  # noqa: F811
    server = start(IDENTITY)
    memory = server.memory(4096)
    inputs = [given(memory, "IN", np.zeros(10, np.float32))]
    server.on_need = lambda *_: {"error": "no memory for output 'OUT'"}
    responses = server.execute(
        server.request(inputs, [["OUT", None, 0, 0, False]]), server.request(inputs, [["OUT", 1, 0, 40, True]])
    )
    assert responses["responses"][0] == {"error": ["INTERNAL", "no memory for output 'OUT'"]}
    assert "outputs" in responses["responses"][1]


def test_a_message_to_forget_may_come_before_an_answer(start):  # noqa: F811
    server = start(IDENTITY)
    memory, other = server.memory(4096), server.memory(4096)

    def on_need(index, name, byte_size):
        server.send({"forget": [other.segment]})
        return {"at": [memory.segment, 2048, byte_size]}

    server.on_need = on_need
    answer = server.execute(server.request([given(memory, "IN", np.zeros(10, np.float32))], [["OUT", None, 0, 0, False]]))
    assert answer["responses"][0]["outputs"][0][3] == memory.segment


@pytest.mark.parametrize("place", [[1, 2048, 64, True], [1, 2048, 64, False], [1, 2048, 8, False]])
def test_a_model_computes_directly_into_the_memory_of_its_output(start, place):  # noqa: F811
    server = start(OBEDIENT)
    memory = server.memory(4096)
    server.on_need = lambda *_: {"at": [1, 1024, 512]}
    code = (
        "a = request.output_array('OUT', (4, 4), 'f4'); np.add(request.inputs()[0].as_numpy(), 1, out=a)\n"
        # What the array shows afterwards is what the client sees: it is the same memory.
        "ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', a)])]; self.kept = a"
    )
    array = np.arange(16, dtype=np.float32).reshape(4, 4)
    (output,) = obey(server, code, [given(memory, "IN", array)], [["OUT", *place]])["responses"][0]["outputs"]
    assert output == ["OUT", "FP32", [4, 4], 1, 2048 if place[2] == 64 else 1024, 64]
    assert (placed(server, output) == array + 1).all()
    memory.put(np.float32(123).tobytes(), output[4])
    assert obey(server, "assert self.kept[0, 0] == 123", outputs=[])["responses"]


def test_an_array_for_an_output_that_cannot_be_placed_is_an_ordinary_one(start):  # noqa: F811
    server = start(OBEDIENT)
    server.memory(4096)
    for place in ([None, 0, 0, True], [1, 0, 10, True]):
        code = (
            "a = request.output_array('OUT', [8], np.int32); a[:] = 5\n"
            "ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', a)])]"
        )
        assert obey(server, code, [], [["OUT", *place]])["responses"][0]["outputs"] == [["OUT", "INT32", [8], None, 0, 32]]
    assert read_text(server, obey(server, "out = request.output_array('NO', (2,), np.int32).shape")) == "(2,)"
    error = obey(server, "request.output_array('OUT', (2,), object)")["error"]
    assert error.startswith("TritonModelException: Output 'OUT' of dtype object cannot be computed in place.")


def test_bf16_goes_by_dlpack_alone(start):  # noqa: F811
    server = start(OBEDIENT)
    memory = server.memory(4096)
    one = given(memory, "IN", np.arange(4, dtype=np.uint16), "BF16")
    error = obey(server, "request.inputs()[0].as_numpy()", [one])["error"]
    assert error.startswith(
        "TritonModelException: Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
    )
    code = "t = request.inputs()[0]; ret = [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack('OUT', {})])]"
    for way in ("t", "t.to_dlpack()"):
        (output,) = obey(server, code.format(way), [one], [["OUT", 1, 2048, 64, True]])["responses"][0]["outputs"]
        assert output == ["OUT", "BF16", [4], 1, 2048, 8]
        assert placed(server, output, np.uint16).tolist() == [0, 1, 2, 3]
    # An input can be answered as it is.
    code = "t = request.inputs()[0]; ret = [pb_utils.InferenceResponse([t])]"
    assert obey(server, code, [one], [["IN", 1, 3072, 8, True]])["responses"][0]["outputs"] == [["IN", "BF16", [4], 1, 3072, 8]]


def test_what_a_consumer_of_dlpack_writes_does_not_reach_the_client(start):  # noqa: F811
    server = start(OBEDIENT)
    memory = server.memory(4096)
    one = given(memory, "IN", np.arange(4, dtype=np.float32))
    code = "t = pb_utils.Tensor.from_dlpack('OUT', request.inputs()[0].to_dlpack()); t.as_numpy()[:] = 9; out = t.as_numpy()[0]"
    assert read_text(server, obey(server, code, [one])) == "9.0"
    assert memory.get(one[4], 16) == np.arange(4, dtype=np.float32).tobytes()


COROUTINE = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        loop = asyncio.get_running_loop()
        assert getattr(self, "loop", loop) is loop
        self.loop = loop
        await asyncio.sleep(0.001)
        if requests[0].request_id() == "fail":
            raise ValueError("bad")
        if requests[0].request_id() == "late":
            task = asyncio.ensure_future(self.later(requests[0].get_response_sender()))
            self.tasks = [task]
            return None
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.output_array("OUT", (2,), "f4"))]) for one in requests]

    async def later(self, sender):
        await asyncio.sleep(0.1)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(2, np.float32))]), 1)
"""


def test_a_coroutine_is_waited_for(start):  # noqa: F811
    server = start(COROUTINE)
    for name in ("", "late", ""):
        response = server.execute(server.request([], [["OUT", None, 0, 0, False]], id=name))["responses"][0]
        assert response["outputs"][0][1:3] == ["FP32", [2]]
    file = server.version_dir / "model.py"
    assert server.execute(server.request(id="fail"))["error"] == f"ValueError: bad\n\nAt:\n  {file}(13): execute\n"


AGAIN = "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE); "


def test_a_request_that_is_to_run_again_has_no_response(start):  # noqa: F811
    server = start(OBEDIENT)
    assert obey(server, AGAIN + "ret = [None]")["responses"] == [{"again": True}]
    error = obey(server, AGAIN + "ret = [text(1)]")["error"]
    assert error.startswith("Expected a None object in the execute function return list for reschduled request, found type ")
    undone = obey(server, AGAIN + "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL); out = 7")
    assert read_text(server, undone) == "7"
    several = obey(server, "requests[1].set_release_flags(2); ret = [text(1), None, text(3)]", count=3)["responses"]
    assert [one.get("again", False) for one in several] == [False, True, False]
    late = "request.get_response_sender().send(text(1)); ret = [None]"
    (answered,) = obey(server, AGAIN + late)["responses"]
    assert "outputs" in answered, "what was sent is the answer"
    assert read_text(server, obey(server, "out = 8")) == "8"


# A model that computes into the place of its output.
OUTPUT_ARRAY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.output(request))]) for request in requests]

    def output(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        out = request.output_array("OUT", value.shape, value.dtype)
        out[...] = value
        return out
"""


def test_unknown_memory_fails_the_request_that_names_it(start):  # noqa: F811
    server = start(IDENTITY)
    memory = server.memory(4096)
    right = server.request([given(memory, "IN", np.float32([5]))], [["OUT", memory.segment, 64, 64, False]])
    first, second = server.execute(server.request([["IN", "FP32", [1], 99, 0, 4]], id="7"), right)["responses"]
    assert first["error"] == ["INTERNAL", "[request id: 7] input 'IN': memory of segment 99 is not mapped in the model's process"]
    assert placed(server, second["outputs"][0]).tolist() == [5]


def test_an_input_that_there_is_no_memory_for_fails_its_request(monkeypatch):
    def no_memory(*_):
        raise MemoryError

    class Refusal:
        def refuse(self, *why):
            self.why = why

        def named(self, text):
            return text

    monkeypatch.setattr(batch, "decoded", no_memory)
    right = {"flags": 0, "inputs": [("IN", "FP32", (1, 0), None, 0, 0)]}
    wrong = {"flags": 0, "inputs": [("TEXT", "BYTES", (1, 0), None, 0, 0)]}
    answers = [Refusal(), Refusal(), Refusal()]
    made = batch.make_requests([right, wrong, right], answers, Memory())
    assert [one._answer for one in made] == [answers[0], answers[2]]
    assert answers[1].why == ("INTERNAL", "input 'TEXT': MemoryError")


@pytest.mark.parametrize("is_region", [False, True])
def test_memory_that_cannot_be_mapped_fails_the_request_that_names_it(start, is_region):  # noqa: F811
    server = start(OUTPUT_ARRAY)
    ours = server.memory(4096)
    for wrong in (lambda number: [["IN", "FP32", [1], number, 0, 4]], lambda number: [given(ours, "IN", np.float32([5]))]):
        # A file that is shorter than the segment. A region needs the guard, which this process does not have.
        short = server.memory(4096, is_region=is_region)
        short.byte_size = 4096 if is_region else 1 << 20
        right = server.request([given(ours, "IN", np.float32([5]))], [["OUT", ours.segment, 64, 64, False]])
        bad = server.request(wrong(short.segment), [["OUT", short.segment, 0, 64, True]])
        answer = server.execute(bad, right)
        first, second = answer["responses"]
        assert first["error"][0] == "INTERNAL" and "cannot be mapped in the model's process" in first["error"][1]
        assert placed(server, second["outputs"][0]).tolist() == [5]
        assert answer["unmapped"] == [short.segment]
    assert server.exchange({"do": "ready"}) == {"is_ready": True}


def test_a_memory_error_in_the_model_is_an_error(start):  # noqa: F811
    server = start(OBEDIENT)
    assert obey(server, "raise MemoryError('too much')")["error"].startswith("MemoryError: too much")


def test_threads_may_ask_and_send_at_the_same_time(start):  # noqa: F811
    server = start(OBEDIENT)
    server.memory(1 << 16)
    code = (
        "def work(r):\n"
        "  time.sleep(0.01); a = r.output_array('OUT', (100,), 'f4'); a[:] = int(r.request_id())\n"
        "  r.get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', a)]), 1)\n"
        "for r in requests: threading.Thread(target=work, args=(r,)).start()\n"
        "del r\nret = None"
    )
    made = [server.request([], [["OUT", None, 0, 0, False]], id=str(at), parameters={"code": code}) for at in range(8)]
    responses = server.execute(*made)["responses"]
    for at, response in enumerate(responses):
        assert (placed(server, response["outputs"][0]) == at).all()
