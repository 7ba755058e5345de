"""Does the example in C++ build with Triton's client library, and read digits?

TRITON_CLIENT names the folder with the library's `include` and `lib`, as its build or NVIDIA's archive `v*_ubuntu*.clients.tar.gz` has them. It is in
none of the registries that CI reaches, so there this is skipped.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = pathlib.Path(os.environ.get("TRITON_CLIENT", "/opt/tritonclient"))


def test_the_example_reads_digits_through_shared_memory(launcher, tmp_path):
    if not (LIBRARY / "include" / "http_client.h").is_file():
        pytest.skip(f"{LIBRARY} has no include/http_client.h: TRITON_CLIENT names the folder of Triton's client library")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not on the path")
    examples = ROOT / "examples"
    built = tmp_path / "digits"
    flags = ["-std=c++17", "-Wall", "-Wextra", f"-I{LIBRARY / 'include'}", f"-L{LIBRARY / 'lib'}", f"-Wl,-rpath,{LIBRARY / 'lib'}"]
    subprocess.run(["g++", *flags, examples / "cpp" / "digits.cc", "-o", built, "-lhttpclient", "-lrt"], check=True)
    repository = tmp_path / "models"
    shutil.copytree(examples / "models" / "digits", repository / "digits")
    with launcher.running("cpp_example", repository=repository) as server:
        done = subprocess.run([built, examples / "digits" / "samples.bin", server.http], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    right, of = (int(word) for word in done.stdout.split()[:3:2])
    assert of == 64 and right >= 60, done.stdout
