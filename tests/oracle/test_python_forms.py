"""Do Python models on nerite and on Triton answer alike, whatever arrays and outputs they make?"""

import itertools

import pytest
from clients import Refused, RequestedOutput, open_client, text
from conftest import both_servers, check_same

MODEL = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        code = request.inputs()[0].as_numpy().reshape(-1)[0].decode()
        found = eval(code)
        if isinstance(found, np.ndarray):
            found = [pb_utils.Tensor("OUT", found)]
        return pb_utils.InferenceResponse(found) if isinstance(found, list) else found
'''
KINDS = ("FP32", "INT64", "BYTES")
ARRAYS = (
    "np.arange(3, dtype={})", "np.arange(6, dtype={}).reshape(2, 3)", "np.asfortranarray(np.arange(6, dtype={}).reshape(2, 3))", "np.arange(6, dtype={}).reshape(2, 3).T",
    "np.arange(6, dtype={})[::2]", "np.arange(6, dtype={})[::-1]", "np.zeros(0, {})", "np.zeros((0, 3), {})", "np.zeros((3, 0), {})", "np.array(1, {})",
    "np.broadcast_to(np.ones(1, {}), 3)",     "np.arange(3, dtype=np.dtype({}).newbyteorder('>'))", "np.matrix(np.ones((1, 3), {}))", "np.ma.masked_array(np.ones(3, {}), [0, 1, 0])", "np.zeros((1,) * 8, {})",
    "np.ones(3, {}).view(np.recarray)",
)  # fmt: skip
TYPES = ("'f4'", "'f8'", "'f2'", "'i1'", "'i2'", "'i4'", "'i8'", "'u1'", "'u2'", "'u4'", "'u8'", "'?'", "'c8'", "'M8[s]'", "'m8[s]'", "'S2'", "'U2'", "'O'", "'g'", "'V2'")
TEXTS = (
    "np.array(['a', 'b'])", "np.array([b'a', b'b'])", "np.array(['a', 'b'], object)", "np.array([b'a', b'b'], object)", "np.array(['a', b'b'], object)", "np.array([1, 2], object)",
    "np.array([None], object)", "np.array([1.5, 'x'], object)", "np.array(['é', '😀'])", "np.array(['é', '😀'], object)", "np.array([b'\\xff'], object)", "np.array([b'\\xff\\0'])",
    "np.array(['a\\0b'], object)", "np.array(['', b''], object)", "np.array([['a'], ['b']], object)", "np.array('a', object)", "np.array([], object)", "np.array([], 'S1')",
    "np.array([[1], [2, 3]], object)", "np.array([np.str_('a'), np.bytes_(b'b')], object)", "np.array([bytearray(b'a')], object)", "np.array([memoryview(b'a')], object)",
    "np.char.array(['a'])", "np.array(['a', 'bcd'])[::-1]", "np.array([True, 'x'], object)", "np.array([float('nan')], object)", "np.array(['\\ud83d'], object)",
)  # fmt: skip
# `Tensor.from_dlpack` is left out: an array of numpy ends the process of a model of 2.51.
OUTPUTS = (
    "[]", "[None]", "[1]", "['OUT']", "[pb_utils.Tensor('OUT', np.ones(3, 'f4')), pb_utils.Tensor('OUT', np.zeros(3, 'f4'))]", "[pb_utils.Tensor('MORE', np.ones(2, 'f4'))]",
    "[pb_utils.Tensor('OUT', np.ones(3, 'f4')), pb_utils.Tensor('MORE', np.ones(2, 'f4'))]", "[pb_utils.Tensor('MORE', np.ones(2, 'f4')), pb_utils.Tensor('OUT', np.ones(3, 'f4'))]",
    "[pb_utils.Tensor('OTHER', np.ones(3, 'f4'))]", "[pb_utils.Tensor('', np.ones(3, 'f4'))]", "[pb_utils.Tensor('OUT', [1, 2])]", "[pb_utils.Tensor('OUT', (1.0,))]", "[pb_utils.Tensor('OUT', 1)]",
    "[pb_utils.Tensor('OUT', None)]", "[pb_utils.Tensor('OUT', 'text')]", "[pb_utils.Tensor(1, np.ones(1))]", "[pb_utils.Tensor('OUT')]",
    "pb_utils.InferenceResponse([])", "pb_utils.InferenceResponse(output_tensors=[])", "pb_utils.InferenceResponse()", "pb_utils.InferenceResponse(None)",
    "pb_utils.InferenceResponse((pb_utils.Tensor('OUT', np.ones(3, 'f4')),))", "pb_utils.InferenceResponse([], error=pb_utils.TritonError('no'))",
    "pb_utils.InferenceResponse(error=pb_utils.TritonError('no'))", "pb_utils.InferenceResponse([], error='no')", "pb_utils.InferenceResponse([], error=None)",
    "pb_utils.InferenceResponse([], pb_utils.TritonError('no'))", "pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.ones(3, 'f4'))], pb_utils.TritonError('no'))", "1", "'text'", "{}",
    "[request.inputs()[0]]", "[pb_utils.get_input_tensor_by_name(request, 'NONE')]", "request.inputs()", "1 / 0",
    "pb_utils.TritonError('no')", "[pb_utils.TritonError('no')]",
)  # fmt: skip


def forms() -> dict[str, tuple[str, str, tuple[str, ...] | None]]:
    """The model, the code that it runs, and the outputs that the request names."""
    made = {}
    for kind in KINDS:
        for shape, dtype in itertools.product(ARRAYS, TYPES if kind == "FP32" else TYPES[:1]):
            code = shape.format(dtype)
            made[f"{kind} {code}"] = kind, code, None
        for code in (*TEXTS, *OUTPUTS):
            made[f"{kind} {code}"] = kind, code, None
    for code, wanted in itertools.product(OUTPUTS, (("OUT",), ("MORE",), ("OUT", "MORE"))):
        made[f"{wanted} of {code}"] = "FP32", code, wanted
    return made


@pytest.fixture(scope="module")
def pair(launcher, tmp_path_factory):
    repository = tmp_path_factory.mktemp("python") / "forms"
    for kind in KINDS:
        folder = repository / f"form_{kind.lower()}"
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(MODEL)
        output = "TYPE_STRING" if kind == "BYTES" else f"TYPE_{kind}"
        (folder / "config.pbtxt").write_text(
            f'backend: "python"\ninput {{ name: "CODE" data_type: TYPE_STRING dims: 1 }}\noutput {{ name: "OUT" data_type: {output} dims: -1 }}\n'
            f'output {{ name: "MORE" data_type: {output} dims: -1 }}\n'
        )
    with both_servers(launcher, repository) as found:
        yield found


def made(server, form):
    kind, code, wanted = form
    with open_client("grpc", server) as client:
        try:
            reply = client.infer(f"form_{kind.lower()}", [text("CODE", [code.encode()], [1])], [RequestedOutput(one) for one in wanted] if wanted else None)
        except Refused as refusal:
            return refusal.status.name
    return {name: (one.datatype, one.shape, one.raw) for name, one in reply.outputs.items()}


# Forms that begin so are answered differently, for these reasons.
MASKED = "Triton refuses masked arrays. The values below the mask are sent"
TWICE = "the last of two outputs of one name is sent. Triton sends both, over gRPC with the shape of neither"
DIFFER = {
    **{f"{kind} np.ma.masked_array(": MASKED for kind in KINDS},
    **{f"{of} [pb_utils.Tensor('OUT', np.ones(3, 'f4')), pb_utils.Tensor('OUT'": TWICE for of in (*KINDS, "('OUT',) of", "('OUT', 'MORE') of")},
}


def test_what_python_models_make(pair):
    check_same(forms(), made, pair, DIFFER)
