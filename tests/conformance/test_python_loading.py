"""What becomes of Python models that do not load, log, print, die or hang?"""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import python_catalogue
import servers
from clients import CODES, Refused, differs, fp32, open_client, refuses, text
from footprint import children
from python_setup import said

# Far beyond what the server is given to end in, and not for ever.
ENDS_S = 120


# Of the session, though for this file only: tests of one protocol come together, whatever file they are in.


@pytest.fixture(scope="session")
def loading(launcher):
    """A server in explicit mode over all models that do not load, and some that do."""
    repository = launcher.copy_of("python_loading")
    for name in python_catalogue.UNLOADABLE | python_catalogue.SILENT:
        python_catalogue.put_broken(repository, name)
    for name in ("py_identity", "py_add_sub", "py_auto", "py_speaks"):
        python_catalogue.put(repository, python_catalogue.named(name))
    flags = ["--model-control-mode=explicit", "--load-model=py_identity"]
    with launcher.running("python_loading", *flags, repository=repository) as found:
        yield found


@pytest.fixture(scope="session", params=["http", "grpc"])
def loading_client(request: pytest.FixtureRequest, loading):
    with open_client(request.param, loading) as found:
        yield found


def refusal_of(client, name: str) -> str:
    with pytest.raises(Refused) as caught:
        client.load(name)
    assert caught.value.status == CODES["INVALID_ARG"][client.protocol == "grpc"]
    return caught.value.text


@pytest.mark.parametrize("name", python_catalogue.UNLOADABLE)
def test_a_model_that_does_not_load_says_why(launcher, loading_client, name):
    broken = python_catalogue.UNLOADABLE[name]
    found = refusal_of(loading_client, name)
    begin = f"load failed for model '{name}': version 1 is at UNAVAILABLE state: Internal: {broken.reason}"
    assert found[: len(begin)] == begin, found
    rest = found[len(begin) :]
    if name == "py_lacks_a_module" and not launcher.oracle:
        searched, at, places = rest.partition("\n\nAt:\n")
        assert searched.startswith(" ('a_module_that_nobody_has.py' is neither in ") and searched.endswith(")"), found
        rest = at + places
    if broken.at:
        assert rest.startswith("\n\nAt:\n  ") and broken.at in found, found
    assert not loading_client.model_ready(name)
    (listed,) = [one for one in loading_client.index() if one["name"] == name]
    assert listed["state"] == "UNAVAILABLE" and listed["reason"].startswith(f"Internal: {broken.reason}")
    sent = fp32("INPUT0", [1, 2])
    assert loading_client.infer("py_identity", [sent]).outputs["OUTPUT0"].raw == sent.raw


def test_a_model_that_failed_has_no_configuration_and_no_metadata(loading_client):
    name = "py_raises_in_import"
    refusal_of(loading_client, name)
    for call in (loading_client.config, loading_client.metadata):
        with refuses("NOT_FOUND", f"Request for unknown model: '{name}' has no available versions"):
            call(name)
        with refuses("UNAVAILABLE", f"Request for unknown model: '{name}' version 1 is not at ready state"):
            call(name, "1")


@differs("2.51 waits for it for ever", run=False)
def test_a_model_file_that_is_missing(loading_client):
    found = refusal_of(loading_client, "py_missing")
    assert found.startswith("load failed for model 'py_missing': version 1 is at UNAVAILABLE state: ")
    assert "py_missing/1/model.py" in found


@differs("2.51 waits for it for ever", run=False)
def test_a_model_file_that_is_no_python_by_name(loading_client):
    reason = python_catalogue.SILENT["py_file_name"].reason
    assert reason in refusal_of(loading_client, "py_file_name")


def test_loading_and_unloading_leaves_no_process(loading, loading_client):
    before = children(loading.pid)
    for _ in range(3):
        loading_client.load("py_add_sub")
        assert len(children(loading.pid)) == len(before) + 1
        loading_client.unload("py_add_sub")
        wait_for(lambda: children(loading.pid) == before)
    wait_for(lambda: "add_sub is finalized" in loading.log_text())


@differs("2.51 takes the compiled files that Python leaves for a change")
def test_a_model_that_has_not_changed_is_not_loaded_anew(loading):
    wait_for(lambda: len(children(loading.pid)) == 1)
    before = children(loading.pid)
    with open_client("http", loading) as client:
        client.load("py_identity")
    assert children(loading.pid) == before


def test_a_model_that_is_loaded_anew_has_a_new_process(loading, loading_client):
    before = children(loading.pid)
    source = loading.repository / "py_identity" / "1" / "model.py"
    source.write_text(source.read_text() + f"# {loading_client.protocol}\n")
    loading_client.load("py_identity")
    wait_for(lambda: len(children(loading.pid)) == len(before) and children(loading.pid) != before)


# ---------------------------------------------------------------------------------------------- processes


def wait_for(condition, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def is_running(pid: int) -> bool:
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def how(word: str):
    return text("HOW", [word.encode()])


def pid_of(client) -> int:
    return int(np.frombuffer(client.infer("py_dying", [how("tell")]).outputs["PID"].raw, np.int64)[0])


@differs("2.51 leaves some of them dead until they are loaded anew", run=False)
@pytest.mark.parametrize("end", ["exit", "segv", "kill", "abort", "close"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_that_ends_its_own_process(python_dying, protocol, end):
    with open_client(protocol, python_dying) as client:
        before = pid_of(client)
        with pytest.raises(Refused) as caught:
            client.infer("py_dying", [how(end)])
        assert caught.value.status == CODES["INTERNAL"][protocol == "grpc"]
        assert caught.value.text.startswith("Stub process 'py_dying_0' is not healthy.")
        after = pid_of(client)
        assert after != before and children(python_dying.pid) == {after}


@differs("2.51 leaves some of them dead until they are loaded anew", run=False)
def test_a_process_that_is_killed_while_it_does_nothing(python_dying):
    with open_client("http", python_dying) as client:
        before = pid_of(client)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: not is_running(before))
        answers = []
        for _ in range(50):
            try:
                answers.append(pid_of(client))
                break
            except Refused as refusal:
                # At most those that came before it was noticed.
                assert "is not healthy" in refusal.text
                time.sleep(0.05)
        assert answers and answers[0] != before
        wait_for(lambda: children(python_dying.pid) == set(answers))


@pytest.fixture(scope="session")
def python_dying(launcher):
    repository = launcher.copy_of("python_dying")
    tensors = python_catalogue.tensors
    model = python_catalogue.python("py_dying", "dying", tensors(HOW="BYTES"), tensors(PID="INT64"))
    python_catalogue.put(repository, model)
    with launcher.running("python_dying", repository=repository) as found:
        yield found


@differs("2.51 waits for ever", run=False)
@pytest.mark.parametrize("where", ["idle", "in execute"])
def test_a_model_that_never_ends_does_not_keep_the_server(launcher, where):
    repository = launcher.copy_of(f"python_looping_{where[:2]}")
    python_catalogue.put(repository, python_catalogue.vector("py_looping", "looping"))
    name = f"python_looping_{where[:2]}"
    with launcher.running(name, "--exit-timeout-secs=2", repository=repository) as found:
        (child,) = children(found.pid)
        if where == "in execute":
            document = '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[-1]}]}'
            client = subprocess.Popen(
                [sys.executable, "-c", "import sys, urllib.request as u; u.urlopen(sys.argv[1], sys.argv[2].encode())",
                 f"http://{found.http}/v2/models/py_looping/infer", document], stderr=subprocess.DEVNULL)
            time.sleep(1)
        found.process.terminate()
        found.process.wait(ENDS_S)
        wait_for(lambda: not is_running(child))
        if where == "in execute":
            client.wait(60)


def test_a_server_that_is_killed_takes_its_models_along(launcher):
    repository = launcher.copy_of("python_survivor")
    python_catalogue.put(repository, python_catalogue.vector("py_looping", "looping"))
    with launcher.running("python_survivor", repository=repository) as found:
        (child,) = children(found.pid)
        found.process.kill()
        found.process.wait()
        wait_for(lambda: not is_running(child))


@differs("2.51 leaves it behind", run=False)
@pytest.mark.parametrize("end", ["unloaded", "dead", "stopped"])
def test_what_a_model_started_ends_with_it(launcher, end):
    repository, tensors = launcher.copy_of(f"python_starting_{end}"), python_catalogue.tensors
    model = python_catalogue.python("py_starting", "starting", tensors(INPUT0="FP32"), tensors(PID="INT64"))
    python_catalogue.put(repository, model)
    flags = ["--model-control-mode=explicit", "--load-model=py_starting"]
    with launcher.running(f"python_starting_{end}", *flags, repository=repository) as found:
        with open_client("http", found) as client:
            raw = client.infer("py_starting", [fp32("INPUT0", [1])]).outputs["PID"].raw
            program = int(np.frombuffer(raw, np.int64)[0])
            assert is_running(program)
            if end == "unloaded":
                client.unload("py_starting")
            elif end == "dead":
                with pytest.raises(Refused):
                    client.infer("py_starting", [fp32("INPUT0", [-1])])
            else:
                assert servers.stop(found) == 0
            wait_for(lambda: not is_running(program))


# ---------------------------------------------------------------------------------------------- what is said


def say(client, level: str, what: str) -> None:
    given = [text("LEVEL", [level.encode()]), text("TEXT", [what.encode()])]
    assert said(client.infer("py_speaks", given)) == what


@pytest.mark.parametrize(
    ("level", "letter"), [("INFO", "I"), ("WARNING", "W"), ("ERROR", "E"), ("VERBOSE", "I")]
)
def test_what_a_model_logs_is_in_the_servers_log(python_server, python_client, level, letter):
    what = f"{level} said over {python_client.protocol}"
    say(python_client, level, what)
    for manner in ("shortly", "by level"):
        wait_for(lambda: f"{what} {manner}" in python_server.log_text())
        (line,) = [line for line in python_server.log_text().splitlines() if f"{what} {manner}" in line]
        assert line.startswith(letter), line


def test_the_log_names_the_line_of_the_model(python_server, python_client):
    what = f"whence over {python_client.protocol}"
    say(python_client, "INFO", what)
    wait_for(lambda: f"{what} by level" in python_server.log_text())
    lines = [line for line in python_server.log_text().splitlines() if what in line and "]" in line]
    assert len(lines) == 2 and all(" model.py:" in line for line in lines), lines


def test_logging_without_a_level_and_printing(python_server, python_client):
    for level in ("default", "print"):
        what = f"{level} said over {python_client.protocol}"
        say(python_client, level, what)
        wait_for(lambda: what in python_server.log_text())
    assert "said when it was initialized" in python_server.log_text()


def test_a_level_that_is_off_is_not_logged(loading, loading_client):
    loading_client.load("py_speaks")
    say(loading_client, "VERBOSE", "never seen")
    say(loading_client, "INFO", "seen")
    wait_for(lambda: "seen by level" in loading.log_text())
    assert "never seen" not in loading.log_text()
    loading_client.unload("py_speaks")
    wait_for(lambda: "said when it was finalized" in loading.log_text())


def test_a_model_that_prints_much(python_server, python_client):
    say(python_client, "much", f"much over {python_client.protocol}")
    last = f"19999 much over {python_client.protocol}"
    wait_for(lambda: python_server.log_text().count(last) == 2)


def test_control_characters_in_a_models_log_lines_do_no_harm(python_client):
    say(python_client, "INFO", "two\nlines, a \x00, \x1b[31m and grün")
