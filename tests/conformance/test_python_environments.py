"""Which environments may Python models bring, in which do they run, and what is left of them?"""

import io
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tarfile
import time

import pytest
import python_catalogue
from catalogue import Model
from clients import RequestedOutput, differs, fp32, http_call, open_client
from python_setup import said

only_here = differs("2.51 wants an interpreter's library and a stub made for it", run=False)

SOURCE = """
import json
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

NAMES = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH")


class TritonPythonModel:
    def execute(self, requests):
        facts = {"prefix": sys.prefix, **{name: os.environ.get(name) for name in NAMES}}
        with open("/proc/self/environ", "rb") as file:
            facts["started_with"] = file.read().decode().split(chr(0))
        said = np.array([json.dumps(facts)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SAID", said)]) for _ in requests]
"""


def model(name: str, environment: str) -> Model:
    inputs, outputs = python_catalogue.tensors(INPUT0="FP32"), python_catalogue.tensors(SAID="BYTES")
    extra = python_catalogue.parameters(EXECUTION_ENV_PATH=environment)
    return Model(name, "python", inputs, outputs, source=SOURCE, extra=extra)


@pytest.fixture
def own(monkeypatch, tmp_path):
    """The directory below which servers unpack, which is theirs alone; the PATH leads to no Python."""
    (tmp_path / "unpacked").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "unpacked"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return tmp_path / "unpacked"


def virtual_environment(folder: pathlib.Path) -> pathlib.Path:
    """A real one, which sees the packages of the Python that runs the tests."""
    made = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(made)], check=True)
    (packages,) = (made / "lib").glob("python3*/site-packages")
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


def packed(folder: pathlib.Path, archive: pathlib.Path) -> pathlib.Path:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, ".")
    return archive


def facts(server, name: str) -> dict:
    with open_client("http", server) as client:
        return json.loads(said(client.infer(name, [fp32("INPUT0", [1])], [RequestedOutput("SAID")])))


@only_here
def test_a_packed_virtual_environment_is_unpacked_once_and_removed_in_the_end(launcher, own, tmp_path):
    archive = packed(virtual_environment(tmp_path), tmp_path / "env.tar.gz")
    repository = launcher.copy_of("python_env_packed")
    python_catalogue.put(repository, model("py_packed", str(archive)))
    python_catalogue.put(repository, model("py_too", "$$TRITON_MODEL_DIRECTORY/env.tar.gz"))
    (repository / "py_too" / "env.tar.gz").symlink_to(archive)
    with launcher.running("python_env_packed", repository=repository) as found:
        (unpacked,) = own.iterdir()
        assert unpacked.stat().st_mode & 0o777 == 0o700
        for name in ("py_packed", "py_too"):
            seen = facts(found, name)
            assert seen["prefix"] == seen["VIRTUAL_ENV"] == str(unpacked)
            assert seen["PATH"].split(os.pathsep)[0] == str(unpacked / "bin")
            assert seen["LD_LIBRARY_PATH"] is None and seen["CONDA_PREFIX"] is None
    assert list(own.iterdir()) == []


@only_here
def test_what_a_killed_server_left_is_removed_by_the_next_one(launcher, own, tmp_path):
    archive = packed(virtual_environment(tmp_path), tmp_path / "env.tar.gz")
    repository = launcher.copy_of("python_env_killed")
    python_catalogue.put(repository, model("py_packed", str(archive)))
    with launcher.running("python_env_killed", repository=repository) as found:
        (left,) = own.iterdir()
        found.process.kill()
        found.process.wait()
    assert left.exists()
    with launcher.running("python_env_killed", repository=repository):
        (now,) = own.iterdir()
        assert now != left
    assert list(own.iterdir()) == []


def program(path: pathlib.Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


@only_here
def test_a_conda_environment_is_unpacked_and_its_libraries_are_for_the_model_alone(launcher, own, tmp_path, monkeypatch):
    """A made up one: what the server looks at is there."""
    env = tmp_path / "conda"
    program(env / "bin" / "python3", f'exec {sys.executable} "$@"')
    for name in ("conda-meta", "lib", "etc/conda/activate.d"):
        (env / name).mkdir(parents=True)
    (env / "etc/conda/activate.d/gdal.sh").write_text("")
    (env / "bin" / "conda-unpack").write_text(
        "import os, sys\nopen(os.path.join(os.environ['CONDA_PREFIX'], 'mark'), 'w').close()\n"
    )
    archive = packed(env, tmp_path / "conda.tar.gz")
    repository = launcher.copy_of("python_env_conda")
    python_catalogue.put(repository, model("py_conda", str(archive)))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/mine")
    with launcher.running("python_env_conda", repository=repository) as found:
        (unpacked,) = own.iterdir()
        assert (unpacked / "mark").exists()
        seen = facts(found, "py_conda")
        assert seen["CONDA_PREFIX"] == str(unpacked) and seen["VIRTUAL_ENV"] is None
        assert f"LD_LIBRARY_PATH={unpacked}/lib:/opt/mine" in seen["started_with"]
        assert seen["LD_LIBRARY_PATH"] == "/opt/mine"
        assert "etc/conda/activate.d/gdal.sh is not run" in found.log_text()
    assert list(own.iterdir()) == []


@only_here
def test_a_server_that_does_not_start_leaves_nothing_either(launcher, own, tmp_path):
    archive = packed(virtual_environment(tmp_path), tmp_path / "env.tar.gz")
    repository = launcher.copy_of("python_env_unstarted")
    python_catalogue.put(repository, model("py_packed", str(archive)))
    python_catalogue.put(repository, model("py_broken", str(tmp_path / "nothing.tar.gz")))
    with pytest.raises(RuntimeError, match="failed to load all models"):
        with launcher.running("python_env_unstarted", repository=repository):
            pass
    assert list(own.iterdir()) == []


# ---------------------------------------------------------------------------------------------- refusals


def refused(launcher, name: str, *flags: str, environment: str = "") -> str:
    """Why the model does not load."""
    repository = launcher.copy_of(name)
    python_catalogue.put(repository, model("py_refused", environment))
    with launcher.running(name, "--exit-on-error=false", *flags, repository=repository) as found:
        (entry,) = http_call(found.http, "POST", "/v2/repository/index").ok().json
    assert entry["state"] == "UNAVAILABLE"
    return entry["reason"]


def entry(name: str, kind=tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


HOSTILE = {
    "climbs": ([entry("../outside")], "its entry '../outside' is named so that it would lie outside"),
    "absolute": ([entry("/tmp/nerite-outside")], "its entry '/tmp/nerite-outside' is named so that it would lie outside"),
    "link_out": ([entry("lib/x", tarfile.SYMTYPE, "../../outside")], "its link 'lib/x' leads out, to '../../outside'"),
    "behind_a_link": (
        [entry("bin/python3", tarfile.SYMTYPE, ".."), entry("bin/python3/outside")],
        "an entry of it lies behind 'bin/python3', which is no directory",
    ),
    "device": ([entry("bin/python3", tarfile.CHRTYPE)], "its entry 'bin/python3' is of kind '3'"),
}


@only_here
@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_would_do_harm_is_refused_and_leaves_nothing(launcher, own, tmp_path, name):
    entries, reason = HOSTILE[name]
    archive = tmp_path / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for one in entries:
            tar.addfile(one, io.BytesIO())
    before = set(tmp_path.iterdir())
    assert reason in refused(launcher, f"python_env_hostile_{name}", environment=str(archive))
    assert set(tmp_path.iterdir()) == before and list(own.iterdir()) == []
    assert not pathlib.Path("/tmp/nerite-outside").exists()


def test_an_environment_that_is_not_there_is_refused_in_tritons_words(launcher):
    reason = refused(launcher, "python_env_nowhere", environment="$$TRITON_MODEL_DIRECTORY/no.tar.gz")
    assert "Failed to get the canonical path for " in reason and "/py_refused/no.tar.gz." in reason


@pytest.mark.parametrize("way", ["archive", "directory"])
def test_a_folder_that_is_no_environment_is_refused_in_tritons_words(launcher, tmp_path, way):
    (tmp_path / "env" / "inner" / "bin").mkdir(parents=True)
    environment = tmp_path / "env" if way == "directory" else packed(tmp_path / "env", tmp_path / "env.tar.gz")
    reason = refused(launcher, f"python_env_{way}", environment=str(environment))
    assert "Path " in reason
    assert "/bin/activate does not exist. The Python environment should contain an 'activate' script." in reason


INTERPRETERS = {
    "old": (["echo nerite-python 3.8.18"], "is Python 3.8.18, and models need 3.9 or newer; name a newer one with"),
    "bare": (
        ["echo nerite-python 3.12.1", "echo nerite-missing ModuleNotFoundError: numpy"],
        "is Python 3.12.1 without a numpy that can be imported (ModuleNotFoundError: numpy); `",
    ),
    "foreign": (["echo what is that", "exit 7"], 'it ended with code 7, and printed "what is that"; install Python 3.9'),
    "crashing": (["kill -SEGV $$"], "is no Python: it was ended by signal 11, and printed nothing"),
}


@only_here
@pytest.mark.parametrize("name", INTERPRETERS)
def test_an_interpreter_that_runs_no_model_is_named_with_what_it_is(launcher, own, tmp_path, name):
    lines, reason = INTERPRETERS[name]
    program(tmp_path / "python3", *lines)
    found = refused(launcher, f"python_env_{name}", f"--backend-config=python,interpreter={tmp_path / 'python3'}")
    named = f"no Python to run the model: '{tmp_path / 'python3'}' (named by --backend-config=python,interpreter) "
    assert named in found and reason in found


@only_here
def test_an_interpreter_that_may_not_be_run_is_named(launcher, own, tmp_path):
    (tmp_path / "python3").write_text("")
    found = refused(launcher, "python_env_forbidden", f"--backend-config=python,interpreter={tmp_path / 'python3'}")
    assert "cannot be started: Permission denied (os error 13); see that the server's user may run it" in found


@only_here
def test_an_interpreter_that_hangs_does_not_hold_the_load_up(launcher, own, tmp_path):
    program(tmp_path / "python3", "exec /bin/sleep 600")
    flags = [f"--backend-config=python,interpreter={tmp_path / 'python3'}", "--backend-config=python,stub-timeout-seconds=1"]
    began = time.monotonic()
    found = refused(launcher, "python_env_hanging", *flags)
    assert "it had 1 seconds" in found and str(tmp_path / "python3") in found
    assert time.monotonic() - began < 60, "a test's patience is a minute, not ten"
