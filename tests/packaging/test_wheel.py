"""Does `pip install nerite` bring a server that a newcomer can use at once?

The wheels are built from the program under test (NERITE_BIN, or the release build) and installed into an empty environment.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
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
    if missing := [tool for tool in ("hatchling", "maturin") if importlib.util.find_spec(tool) is None]:
        pytest.skip(f"{' and '.join(missing)} is not installed; python3 tests/setup_venv.py installs it")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", place, *sources]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "NERITE_BIN": str(program), "NERITE_RUNNER": str(runner)})


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
    extras = ("http", "grpc", "cuda", "all")
    assert required == {f"nerite-client=={version}", *(f"nerite-client[{extra}]=={version} ; extra == '{extra}'" for extra in extras)}
    assert run(environment, "python", "-m", "pip", "check").returncode == 0


def test_without_the_server_its_clients_say_what_is_missing(wheels, tmp_path):
    (client,) = (one for one in wheels if "client" in one.name)
    zipfile.ZipFile(client).extractall(tmp_path)
    # Without any other package, and with no program on the path.
    command = [sys.executable, "-S", "-c", "import nerite; nerite.serve('models')"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path), "PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "only its clients (nerite-client " in done.stderr and "`pip install nerite==" in done.stderr


def test_the_wheel_is_for_this_system_and_made_by_maturin(wheels):
    (server,) = (one for one in wheels if one.name.startswith("nerite-"))
    written = zipfile.ZipFile(server).read(f"{'-'.join(server.name.split('-')[:2])}.dist-info/WHEEL").decode()
    assert "Generator: maturin" in written
    major, minor = map(int, re.search(rf"-py3-none-manylinux_(\d+)_(\d+)_{os.uname().machine}\.", server.name).groups())
    # The system on which the tests run has what the tag asks for.
    here = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
    assert here >= (major, minor)


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
    for program, expected in ((other, "libz.so.6"), (runner, "parse the elf file")):
        done = make_wheels(tmp_path / "wheels", program, ROOT / "packaging" / "wheel", runner=runner)
        assert done.returncode != 0 and expected in done.stdout, done.stdout


def test_a_program_of_another_version_is_refused(tmp_path):
    other = script(tmp_path / "other", "echo nerite 99.0.0")
    done = make_wheels(tmp_path / "wheels", other, ROOT / "packaging" / "wheel")
    assert done.returncode != 0 and "other is nerite 99.0.0, and the wheel is nerite 0." in done.stdout, done.stdout
