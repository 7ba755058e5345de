"""Do the wheels bring a server that a newcomer can use at once?

The wheels are built from the program under test (NERITE_BIN, or the release build) and installed into an empty environment. One test gives no program:
it installs from the sources as the quick start says.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile

import pytest
import registry
import setup_linters

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# What the README of the distribution shows, on the examples that come with it.
QUICK_START = """
import numpy as np
import nerite

with nerite.serve(nerite.examples() / "models") as server:
    with server.connect() as client:
        digits = client.model("digits")
        out = digits(image=np.zeros((1, 64), np.float32))
        print(client.transport, out.probabilities.shape, abs(float(out.probabilities.sum()) - 1) < 1e-3)
print(server.stop())
"""


@pytest.fixture(scope="session")
def wheels(stripped, tmp_path_factory) -> list[pathlib.Path]:
    """The wheel of the server and that of the clients."""
    place = tmp_path_factory.mktemp("wheels")
    done = make_wheels(place, stripped, ROOT / "python", ROOT / "packaging" / "wheel")
    assert done.returncode == 0, done.stdout
    return sorted(place.iterdir())


def make_wheels(place: pathlib.Path, program: pathlib.Path, *sources: pathlib.Path, runner: object = "") -> subprocess.CompletedProcess:
    """Makes the wheels of these sources, with this program as the server's. `runner` is an emulator that runs it."""
    if missing := [tool for tool in ("hatchling", "elftools") if importlib.util.find_spec(tool) is None]:
        pytest.skip(f"{' and '.join(missing)} is not installed; python3 tests/setup_venv.py installs it")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", place, *sources]
    environment = {**os.environ, "NERITE_BIN": str(program), "NERITE_RUNNER": str(runner), "PATH": f"{without_toolchain(place)}:{os.environ['PATH']}"}
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def without_toolchain(place: pathlib.Path) -> pathlib.Path:
    """A folder for the PATH in which cargo and the compiler fail: a program that is given needs neither."""
    folder = place.with_name(f"{place.name}_without_toolchain")
    folder.mkdir(exist_ok=True)
    for name in ("cargo", "rustc"):
        script(folder / name, f"echo {name} was called >&2; exit 1")
    return folder


@pytest.fixture(scope="session")
def environment(wheels, tmp_path_factory) -> pathlib.Path:
    """An empty environment into which both were installed, with what they depend on."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=True)
    pins = [line for line in (ROOT / "tests" / "requirements.txt").read_text().splitlines() if line.startswith("numpy==")]
    command = [place / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *wheels, *pins]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0 and registry.is_out_of_reach(done.stdout):
        pytest.skip("numpy and tritonclient cannot be had without a network")
    assert done.returncode == 0, done.stdout
    return place


def would_compile(built: pathlib.Path) -> bool:
    """Whether cargo would compile the program anew: it is not there, or a source is newer."""
    # What cargo wrote beside it: the program, a colon, and its sources. A blank in a path has a backslash before it.
    noted = built.with_suffix(".d")
    if not built.exists() or not noted.exists():
        return True
    sources = [pathlib.Path(one.replace("\\ ", " ")) for one in re.split(r"(?<!\\)\s+", noted.read_text().partition(": ")[2].strip())]
    return any(not source.exists() or source.stat().st_mtime > built.stat().st_mtime for source in [*sources, ROOT / "Cargo.lock"])


def test_the_commands_of_the_quick_start_install_the_server(tmp_path, record_property):
    """As the page has them: nothing is given, and cargo compiles. It finds the release build, so it takes seconds."""
    built = ROOT / "target" / "release" / "nerite"
    if would_compile(built):
        pytest.skip("there is no release build of these sources (cargo build --release --locked), which takes minutes to compile")
    (commands,) = re.findall(r"^```console\n(\$ python3 -m venv .*?)^```$", (ROOT / "docs" / "quickstart.md").read_text(), re.M | re.S)
    environment = tmp_path / "environment"
    lines = commands.replace("$ ", "").replace("~/nerite", str(environment))
    assert "pip install ./python ./packaging/wheel\n" in lines and lines.count(str(environment)) == 2
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NERITE_", "PYTHON", "VIRTUAL_ENV"))}
    clean |= {"CARGO_TARGET_DIR": str(ROOT / "target"), "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), clean["PATH"]])}
    began = time.monotonic()
    done = subprocess.run(["bash", "-e", "-c", lines], cwd=ROOT, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    if done.returncode != 0 and registry.is_out_of_reach(done.stdout):
        pytest.skip("pip reaches no registry")
    assert done.returncode == 0, done.stdout
    record_property("seconds", round(time.monotonic() - began, 1))
    print(f"\ninstalled from the sources in {time.monotonic() - began:.1f} s, without compiling")
    assert (environment / "bin" / "nerite").read_bytes() == built.read_bytes()
    ran = run(environment, "python", "-c", QUICK_START)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[:2] == ["session (1, 10) True", "0"]


def script(path: pathlib.Path, line: str) -> pathlib.Path:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def run(environment: pathlib.Path, *words, **more) -> subprocess.CompletedProcess:
    """Runs a program of the environment, as somebody who did not activate it, in an empty folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NERITE_", "PYTHON", "VIRTUAL_ENV"))}
    program, *rest = words
    return subprocess.run([environment / "bin" / program, *rest], capture_output=True, text=True, timeout=240, cwd=environment, env=clean, **more)


def test_the_quick_start_runs_in_an_empty_environment(environment):
    done = run(environment, "python", "-c", QUICK_START)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["session (1, 10) True", "0"]


def test_the_example_of_the_page_runs(environment):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "install.md").read_text(), re.S)
    done = run(environment, "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().isdigit()


def test_the_command_is_the_program_itself(environment, stripped):
    assert (environment / "bin" / "nerite").read_bytes() == stripped.read_bytes()
    version = run(environment, "nerite", "version").stdout
    assert run(environment, "python", "-m", "nerite", "version").stdout == version != ""
    usage = run(environment, "python", "-m", "nerite", "serve", "--help")
    assert "--model-repository" in usage.stdout + usage.stderr


def test_the_demo_finds_the_examples_that_were_installed(environment):
    done = run(environment, "nerite", "demo", "--exit")
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(environment / "share" / "nerite" / "examples") in done.stdout.replace("\n", "")


def test_no_file_belongs_to_both_distributions(wheels):
    client, server = (set(zipfile.ZipFile(wheel).namelist()) for wheel in sorted(wheels, key=lambda one: "client" not in one.name))
    assert "nerite/__init__.py" in client and "nerite/_serve.py" in client
    # A package of the server's wheel would be written over that of the clients.
    assert not {name for name in server if name.endswith(".py") and ".data/" not in name}
    assert not client & server


def test_server_and_clients_of_different_versions_are_refused(environment, wheels):
    (server,) = (one for one in wheels if one.name.startswith("nerite-"))
    metadata = zipfile.ZipFile(server).read(f"{'-'.join(server.name.split('-')[:2])}.dist-info/METADATA").decode()
    version = server.name.split("-")[1]
    required = {line.partition(": ")[2] for line in metadata.replace('"', "'").splitlines() if line.startswith("Requires-Dist: ")}
    extras = ("http", "grpc", "cuda", "all", "fleet")
    assert required == {f"nerite-client=={version}", *(f"nerite-client[{extra}]=={version}; extra == '{extra}'" for extra in extras)}
    assert run(environment, "python", "-m", "pip", "check").returncode == 0


def test_without_the_server_its_clients_say_what_is_missing(wheels, tmp_path):
    (client,) = (one for one in wheels if "client" in one.name)
    zipfile.ZipFile(client).extractall(tmp_path)
    # Without any other package, and with no program on the path.
    command = [sys.executable, "-S", "-c", "import nerite; nerite.serve('models')"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path), "PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "only its clients (nerite-client " in done.stderr and "install the wheel of nerite " in done.stderr


def test_the_wheel_is_for_this_system(wheels):
    (server,) = (one for one in wheels if one.name.startswith("nerite-"))
    major, minor = map(int, re.search(rf"-py3-none-manylinux_(\d+)_(\d+)_{os.uname().machine}\.", server.name).groups())
    # The system on which the tests run has what the tag asks for.
    here = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
    assert here >= (major, minor)


@pytest.mark.skipif(os.uname().machine != "x86_64" or not shutil.which("nm"), reason="the program has its own on x86-64; nm tells")
def test_the_program_does_not_take_the_function_of_glibc_2_35(program):
    """`crates/onnx/src/hypot.rs` has it. So the wheel also runs with glibc 2.34."""
    symbols = subprocess.run(["nm", "--dynamic", program], capture_output=True, text=True, check=True).stdout
    assert "hypotf" not in symbols


@pytest.mark.skipif(not setup_linters.is_there(), reason="python3 tests/packaging/setup_linters.py installs auditwheel")
def test_the_tag_is_what_auditwheel_would_give(wheels):
    """The tool by which other wheels get their tags reads the program itself."""
    (server,) = (one for one in wheels if one.name.startswith("nerite-"))
    environment = {**os.environ, "PYTHONPATH": str(setup_linters.FOLDER)}
    printed = subprocess.run([sys.executable, "-m", "auditwheel", "show", server], capture_output=True, text=True, check=True, env=environment).stdout
    tag = server.stem.rpartition("-")[2]
    assert f'platform tag: "{tag}"' in " ".join(printed.split()), printed


def test_a_program_that_needs_more_than_every_system_has_is_refused(stripped, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(stripped.read_bytes().replace(b"libm.so.6\0", b"libz.so.6\0"))
    # Without that library it cannot run, so another program tells its version.
    runner = script(tmp_path / "runner", f"exec {stripped} version")
    for program, expected in ((other, "libz.so.6"), (runner, "is no program for Linux")):
        done = make_wheels(tmp_path / "wheels", program, ROOT / "packaging" / "wheel", runner=runner)
        assert done.returncode != 0 and expected in done.stdout, done.stdout


def test_a_program_of_another_version_is_refused(tmp_path):
    other = script(tmp_path / "other", "echo nerite 99.0.0")
    done = make_wheels(tmp_path / "wheels", other, ROOT / "packaging" / "wheel")
    assert done.returncode != 0 and "other is nerite 99.0.0, and the wheel is nerite 0." in done.stdout, done.stdout
