"""How does a server come by GPUs on a host without any?

By two stand-ins of crates/cuda/tests/stand_in that this compiles: one for the CUDA driver, and one for NVML. They are neither CUDA nor NVML.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess

import pytest

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "crates/cuda/tests/stand_in"
UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (1, 2)]


def compiled(source: str, target: pathlib.Path, *defined: str) -> pathlib.Path:
    """A library. `defined` are macros of the source, as `CODE=3`."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    macros = [f"-D{one}" for one in defined]
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", *macros, "-o", target, SOURCES / source], check=True)
    return target


@contextlib.contextmanager
def stand_ins(folder: pathlib.Path, *defined: str, nvml: bool = True):
    """Servers that are started in this block have two GPUs. `defined` says which function of NVML fails or hangs."""
    driver = compiled("stand_in_driver.c", folder / "libstand_in_driver.so")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NERITE_CUDA_LIBRARY", str(driver))
        if nvml:
            compiled("stand_in_nvml.c", folder / "libnvidia-ml.so.1", *defined)
            patch.setenv("LD_LIBRARY_PATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])))
        yield
