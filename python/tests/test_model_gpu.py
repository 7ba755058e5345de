"""Do tensors on a GPU become outputs, where they are to lie?

The driver is the stand-in of crates/cuda/tests/stand_in, which is no CUDA. tests/gpu/test_python_gpu.py asks the same through a server, and of a real GPU.
"""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from model_server import OBEDIENT, obey, placed, read_text, start  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARRAYS = ROOT / "tests/gpu/arrays"
# More than both blocks that copies go through, and no multiple of them.
LARGE = 5 * (1 << 20) + 77


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> pathlib.Path:
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("driver") / "libstand_in_driver.so"
    source = ROOT / "crates/cuda/tests/stand_in/stand_in_driver.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    return library


@pytest.fixture
def model(start, driver):  # noqa: F811
    """A model whose code finds ``gpu``, a library of arrays on a GPU."""
    source = f"import sys; sys.path.insert(0, {str(ARRAYS)!r}); import stand_in as gpu\n"
    source += OBEDIENT.replace('known = {"pb_utils"', 'known = {"gpu": gpu, "pb_utils"')
    return start(source, environment={**os.environ, "NERITE_CUDA_LIBRARY": str(driver)})


TENSOR = "ret = [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack('OUT', gpu.make(np.arange({count}, dtype='f4')))])]"


@pytest.mark.parametrize("count", [0, 1, 1 << 20, LARGE])
def test_an_output_is_copied_to_its_place(model, count):
    """There is a place, or a place that is too small and is exchanged, or none yet."""
    memory = model.memory(4 * count + 128)
    for place in ([memory.segment, 64, 4 * count, True], [memory.segment, 0, 4, False], [None, 0, 0, False]):
        answer = obey(model, TENSOR.format(count=count), outputs=[["OUT", *place]])
        (output,) = answer["responses"][0]["outputs"]
        assert output[:3] == ["OUT", "FP32", [count]]
        if count:
            assert (placed(model, output) == np.arange(count, dtype=np.float32)).all()
        if place[3] and count:
            assert output[3:] == [memory.segment, 64, 4 * count]


def test_a_place_of_a_client_that_is_too_small_stays_as_it_was(model):
    memory = model.memory(4096)
    answer = obey(model, TENSOR.format(count=100), outputs=[["OUT", memory.segment, 0, 64, True]])
    assert answer["responses"][0]["outputs"] == [["OUT", "FP32", [100], None, 0, 400]]
    assert memory.get(0, 4096) == bytes(4096)


def test_what_the_driver_refuses_fails_the_request_alone(model):
    failing = "gpu.driver.standInFail(b'cuMemcpyDtoHAsync_v2'); " + TENSOR.format(count=3)
    error = obey(model, failing)["responses"][0]["error"]
    assert error[0] == "INTERNAL" and "output 'OUT' could not be written: TritonModelException: cuMemcpyDtoHAsync_v2: out of memory" in error[1]
    working = "gpu.driver.standInFail(b''); " + TENSOR.format(count=3)
    assert obey(model, working)["responses"][0]["outputs"][0][2] == [3]


def test_copies_take_two_page_locked_blocks_and_one_context(model):
    for _ in range(3):
        obey(model, TENSOR.format(count=LARGE))
    assert read_text(model, obey(model, "out = gpu.page_locked(), gpu.live()")) == "(2, 0)"
