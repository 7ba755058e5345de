"""Which operators of ONNX Runtime allocate while several threads compute?

Nobody catches an exception on a thread of the pool. So such an operator ends the server if its run may not have more memory. All node tests of the
`onnx` package, and some graphs with ONNX Runtime's own operators, are run in other processes (`refused_allocations.py`). A library that is loaded before
all others (`programs/refused_allocations.c`) counts the allocations of each thread, and refuses them one by one. A process that ends then is a sign of such
an operator too.

ONNX Runtime computes small tensors on one thread. So the processes load a copy of it in which every loop counts as long enough for several threads.
"""

import importlib.util
import json
import os
import pathlib
import pickle
import re
import select
import struct
import subprocess
import sys
import warnings

import numpy as np
import onnx
import pytest
from compiled_setup import FLAGS
from onnx import TensorProto, helper, numpy_helper
from operators import IR_VERSION_MAX
from servers import ROOT

# The newest version of the standard operators that ONNX Runtime 1.31 knows.
OPSET_MAX = 26
OWN = "com.microsoft"
# Constants of its cost model, which lie one after another in the library: the cycles of a loaded byte, the cycles for which one more thread is worth its
# start, a summand for rounding, and the cycles of a task.
COSTS = (11 / 64, 100_000.0, 0.9, 40_000.0)
SMALL_COSTS = (11 / 64, 0.001, 0.9, 0.001)
# A run that takes longer hangs.
RUN_LIMIT_S = 60
# At least so many cases must run, and these operators must be seen to allocate in parallel. Otherwise the test would find nothing.
CASES_MIN = 1000
SEEN = {"Attention", "GroupQueryAttention"}

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Environment variables of a process that counts allocations, and whose ONNX Runtime runs every loop on several threads."""
    spec = importlib.util.find_spec("onnxruntime") or pytest.skip("there is no ONNX Runtime")
    folder = tmp_path_factory.mktemp("parallel")
    package, changed = pathlib.Path(spec.origin).parent, folder / "onnxruntime"
    (changed / "capi").mkdir(parents=True)
    for original in (*package.iterdir(), *(package / "capi").iterdir()):
        copy = changed / original.relative_to(package)
        if "pybind11_state.cpython" in original.name:
            library = original.read_bytes()
            costs = struct.pack("4d", *COSTS)
            assert library.count(costs) == 1, "this version has other constants: look for them in its threadpool.cc"
            copy.write_bytes(library.replace(costs, struct.pack("4d", *SMALL_COSTS)))
        elif original.name != "capi":
            copy.symlink_to(original)
    hook = folder / "refused_allocations.so"
    source = ROOT / "tests" / "programs" / "refused_allocations.c"
    subprocess.run(["cc", *FLAGS, "-fexceptions", str(source), "-o", str(hook), "-ldl"], check=True)
    return os.environ | {"LD_PRELOAD": str(hook), "PYTHONPATH": str(folder)}


# ------------------------------------------------------------------------------------------------ the cases


def node_tests():
    from onnx.backend.test.case.node import collect_testcases

    def array_of(value):
        value = numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
        return np.asarray(value) if isinstance(value, np.generic) else value

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in collect_testcases(None) if "_expanded" not in case.name]
    for case in cases:
        case.model.ir_version = min(case.model.ir_version, IR_VERSION_MAX)
        for opset in case.model.opset_import:
            if not opset.domain:
                opset.version = min(opset.version, OPSET_MAX)
        initialized = {one.name for one in case.model.graph.initializer}
        names = [one.name for one in case.model.graph.input if one.name not in initialized]
        feeds = dict(zip(names, map(array_of, case.data_sets[0][0])))
        yield case.model.graph.node[-1].op_type, case.model.SerializeToString(), feeds


def graph(op: str, *inputs: np.ndarray | None, domain: str = OWN, outputs: int = 1, **attributes):
    """A graph with one operator. A missing input is None."""
    names = ["" if value is None else f"i{at}" for at, value in enumerate(inputs)]
    given = {name: value for name, value in zip(names, inputs) if value is not None}
    outs = [f"o{at}" for at in range(outputs)]
    made = helper.make_graph(
        [helper.make_node(op, names, outs, domain=domain, **attributes)],
        op,
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in given.items()],
        [helper.make_value_info(name, onnx.TypeProto()) for name in outs],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(OWN, 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION_MAX)
    return op, model.SerializeToString(), given


def own_graphs(dtype: type):
    """Operators that the node tests do not have, or not with FP16."""
    rng = np.random.default_rng(7)
    rows, length, width, heads = 4, 8, 32, 4

    def numbers(*shape: int) -> np.ndarray:
        return (rng.random(shape) / 2).astype(dtype)

    def bytes_of(*shape: int) -> np.ndarray:
        return rng.integers(0, 255, shape).astype(np.uint8)

    x, gamma, picture = numbers(rows, length, width), numbers(width), numbers(3, 4, 17, 19)
    kv = numbers(rows, length, width // 2)
    lengths, total = np.full(rows, length - 1, np.int32), np.array(length, np.int32)
    # Standard operators.
    for op in ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"):
        yield graph(op, x, gamma, domain="")
    for op in ("Softmax", "LogSoftmax", "Gelu", "Erf", "Tanh"):
        yield graph(op, x, domain="")
    for axes in ([0], [1], [0, 2], [0, 1, 2]):
        yield graph("ReduceSum", x, np.array(axes), domain="")
    yield graph("TopK", x, np.array([5]), domain="", outputs=2)
    yield graph("MatMul", numbers(6, 20, 30), numbers(6, 30, 40), domain="")
    yield graph("Gemm", numbers(30, 40), numbers(40, 30), domain="")
    yield graph("Einsum", x, x, domain="", equation="bsh,bth->bst")
    for group in (1, 2):
        yield graph("Conv", picture, numbers(8, 4 // group, 3, 3), numbers(8), domain="", group=group)
        yield graph("ConvTranspose", picture, numbers(4, 8 // group, 3, 3), numbers(8), domain="", group=group)
    for mode in ("nearest", "linear", "cubic"):
        yield graph("Resize", picture, None, np.array([1, 1, 1.7, 1.7], np.float32), domain="", mode=mode)
    yield graph("GridSample", picture, numbers(3, 11, 12, 2), domain="")
    yield graph("DFT", numbers(4, 12, 15, 2), None, np.array(1), domain="")
    yield graph("STFT", numbers(4, 128, 1), np.array(4), np.ones(16, dtype), np.array(16), domain="")
    yield graph("LSTM", numbers(8, 4, 10), numbers(2, 48, 10), numbers(2, 48, 12), domain="", direction="bidirectional", hidden_size=12)
    # Operators of ONNX Runtime.
    yield graph("SkipLayerNormalization", x, x, gamma, gamma)
    yield graph("SkipSimplifiedLayerNormalization", x, x, gamma)
    for op in ("FastGelu", "QuickGelu", "ScaledSiLU"):
        yield graph(op, x)
    yield graph("GatedRMSNorm", x, gamma, x)
    yield graph("MultiHeadAttention", x, x, x, num_heads=heads)
    yield graph("Attention", x, numbers(width, 3 * width), numbers(3 * width), num_heads=heads)
    yield graph("GroupQueryAttention", x, kv, kv, None, None, lengths, total, outputs=3, num_heads=heads, kv_num_heads=2)
    yield graph("LinearAttention", x, x, x, outputs=2, q_num_heads=heads, kv_num_heads=heads, update_rule="linear")
    yield graph("CausalConvWithState", numbers(rows, width, length), numbers(width, 1, 4), outputs=2)
    yield graph("RotaryEmbedding", numbers(rows, heads, length, 8), np.tile(np.arange(length), (rows, 1)), numbers(64, 4), numbers(64, 4))
    yield graph("MoE", x, numbers(rows * length, 4), numbers(4, 16, width), None, numbers(4, width, 16), k=2, activation_type="silu")
    for bits in (4, 8):
        packed = 32 * bits // 8
        yield graph("MatMulNBits", numbers(rows, length, 64), bytes_of(32, 2, packed), numbers(32, 2), K=64, N=32, bits=bits, block_size=32)
        experts = [bytes_of(4, 32, packed), numbers(4, 32), None]
        yield graph("QMoE", numbers(32, 32), numbers(32, 4), *experts, *experts, k=2, expert_weight_bits=bits, activation_type="silu")


# ---------------------------------------------------------------------------------------------------- the test


def outcomes(cases: list, environment: dict[str, str], folder: pathlib.Path) -> list[dict]:
    """The outcome of each case. If a process dies or hangs in a case, another one runs the remaining cases."""
    file = folder / "cases"
    file.write_bytes(pickle.dumps(cases))
    found: list[dict] = []
    while len(found) < len(cases):
        command = [sys.executable, str(ROOT / "tests" / "hostile" / "refused_allocations.py"), str(file), str(len(found))]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child:
            while select.select([child.stdout], [], [], RUN_LIMIT_S)[0] and (line := child.stdout.readline()):
                found.append(json.loads(line))
            child.kill()
        if len(found) < len(cases):
            found.append({"ended": child.returncode})
    return found


def listed() -> set[str]:
    """The operators in the server's list."""
    source = (ROOT / "crates/ort/src/allocator.rs").read_text()
    return set(re.findall(r'"(\w+)"', re.search(r"ALLOCATES_IN_PARALLEL.*?\];", source, re.DOTALL)[0]))


def test_only_the_listed_operators_allocate_in_parallel(environment, tmp_path):
    cases = [*node_tests(), *own_graphs(np.float32), *own_graphs(np.float16)]
    found = outcomes(cases, environment, tmp_path)
    ran = [(op, row) for (op, _, _), row in zip(cases, found) if "allocations" in row]
    assert len(ran) >= CASES_MIN
    assert not {op for op, row in ran if row["without_error"]}
    # On a busy machine, the first runs of such an operator may compute on one thread. If an allocation of a later run is refused, its other threads go on
    # with memory that the caller has left, and the process ends.
    in_parallel = {op for (op, _, _), row in zip(cases, found) if "ended" in row or row.get("on_other_threads")}
    assert in_parallel <= listed(), "add it to ALLOCATES_IN_PARALLEL"
    assert in_parallel >= SEEN
