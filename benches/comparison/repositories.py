"""Which models do the two servers serve?"""

import pathlib
import shutil
import subprocess

import triton

from .report import note

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PYTHON_IDENTITY = "identity in Python"
ECHO_MODEL = (ROOT / "benches" / "peer" / "identity.py").read_text()


def write_identity(repository: pathlib.Path, backend: str) -> None:
    """The one model that is measured: FP32 of any length, returned as it came."""
    example = (ROOT / "examples" / "models" / "identity_fp32" / "config.pbtxt").read_text()
    folder = repository / "identity_fp32"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(example.replace('backend: "identity"', f'backend: "{backend}"'))
    if backend == "python":
        (folder / "1" / "model.py").write_text(ECHO_MODEL)


def write_digits(repository: pathlib.Path, backend: str) -> None:
    """A small network: an ONNX model, or one that onnxruntime runs in a Python model."""
    folder = repository / "digits"
    shutil.copytree(ROOT / "examples" / "models" / "digits", folder)
    if backend == "python":
        config = folder / "config.pbtxt"
        config.write_text(config.read_text().replace('platform: "onnxruntime_onnx"', 'backend: "python"'))
        (folder / "1" / "model.py").write_text(triton.GENERIC_MODEL)


def put_peer_backends(backends: pathlib.Path, given: pathlib.Path | None) -> str:
    """Brings compiled backends into the peer's backend folder: those of `given`, and an identity. Says in a few words what the identity is."""
    for folder in given.iterdir() if given else ():
        if folder.is_dir() and not (backends / folder.name).exists():
            shutil.copytree(folder, backends / folder.name)
    if (backends / "identity").exists():
        return "identity of --peer-backends"
    if compile_identity(backends):
        return "identity in C, benches/peer/identity.c"
    note("no gcc or cc found: the peer's identity is a Python model, and slower than the server is")
    return PYTHON_IDENTITY


def has_onnx_backend(backends: pathlib.Path) -> bool:
    return (backends / "onnxruntime").exists()


def compile_identity(out: pathlib.Path) -> bool:
    """The peer's identity backend, where the server looks for it in its backend folder `out`; whether there is one now.
    No library is linked: its functions are found in the libtritonserver that the running server has loaded."""
    if compiler() is None:
        return False
    library = out / "identity" / "libtriton_identity.so"
    library.parent.mkdir(parents=True)
    source = ROOT / "benches" / "peer" / "identity.c"
    subprocess.run([compiler(), "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return True


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")
