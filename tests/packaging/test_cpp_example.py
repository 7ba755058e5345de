"""Does the example in C++ read digits through a region, by the interface of Triton's client library?

The library itself is in none of the registries. So the example is built with declarations of what it uses, and with a stand-in behind them
(`tests/programs/triton_client`). Where TRITON_CLIENT names the folder with the library's `include` and `lib`, as its build or NVIDIA's archive
`v*_ubuntu*.clients.tar.gz` has them, it is built with the library as well.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = pathlib.Path(os.environ.get("TRITON_CLIENT", "/opt/tritonclient"))
STAND_IN = ROOT / "tests" / "programs" / "triton_client"
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the path")


def build(kind: str, built: pathlib.Path) -> pathlib.Path:
    if kind == "library" and not (LIBRARY / "include" / "http_client.h").is_file():
        pytest.skip(f"{LIBRARY} has no include/http_client.h: TRITON_CLIENT names the folder of Triton's client library")
    of_the_library = [f"-I{LIBRARY / 'include'}", f"-L{LIBRARY / 'lib'}", f"-Wl,-rpath,{LIBRARY / 'lib'}", "-lhttpclient"]
    of_the_stand_in = ["-Werror", f"-I{STAND_IN}", STAND_IN / "http_client.cc"]
    more = of_the_library if kind == "library" else of_the_stand_in
    flags = ["-std=c++17", "-Wall", "-Wextra", EXAMPLES / "cpp" / "digits.cc", *more, "-lrt"]
    subprocess.run(["g++", "-o", built, *flags], check=True)
    return built


def read_digits(built: pathlib.Path, url: str) -> subprocess.CompletedProcess:
    return subprocess.run([built, EXAMPLES / "digits" / "samples.bin", url], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("kind", ["stand-in", "library"])
def test_the_example_reads_digits_through_shared_memory(launcher, tmp_path, kind):
    built = build(kind, tmp_path / "digits")
    repository = tmp_path / "models"
    shutil.copytree(EXAMPLES / "models" / "digits", repository / "digits")
    with launcher.running("cpp_example", repository=repository) as server:
        done = read_digits(built, server.http)
    assert done.returncode == 0, done.stderr
    # The library may print lines of its own before.
    right, of = (int(word) for word in done.stdout.splitlines()[-1].split()[:3:2])
    assert of == 64 and right >= 60, done.stdout


@pytest.mark.parametrize("kind", ["stand-in", "library"])
def test_the_example_shows_the_servers_error_and_leaves_no_object(launcher, tmp_path, kind):
    built = build(kind, tmp_path / "digits")
    repository = tmp_path / "models"
    shutil.copytree(EXAMPLES / "models" / "simple", repository / "simple")
    with launcher.running("cpp_example_error", repository=repository) as server:
        done = read_digits(built, server.http)
    assert done.returncode == 1 and "infer: " in done.stderr and "digits" in done.stderr, done.stderr
    assert not list(pathlib.Path("/dev/shm").glob("cpp_digits_*"))
