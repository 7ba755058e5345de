"""Does a model's process wait for a debugger where the operator says so, and what is said if it cannot?

The debugger is a module of the test's own that has the same functions. If the models' interpreter has debugpy, that one is tried as well.
"""

import concurrent.futures
import contextlib
import json
import socket
import subprocess
import sys
import time

import pytest
import python_catalogue
import servers
from clients import Refused, fp32, open_client

MODEL = "py_identity"
ATTACHES_S = 60
# Attached is who connects.
DEBUGGER = """
import socket

def listen(address):
    global _heard
    _heard = socket.create_server(address)

def wait_for_client():
    _heard.accept()[0].close()
"""
NO_DEBUGGER = "raise ImportError('it is not here')\n"
BUSY = "def listen(address):\n    raise RuntimeError(f'{address[1]} is taken')\n"


@pytest.fixture(autouse=True)
def only_here(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no such setting")


@contextlib.contextmanager
def serving(launcher, debugger: str | None, *flags: str, extra: str = ""):
    """A server that loads nothing yet; beside the model lies this debugger."""
    repository = launcher.copy_of("python_debugging")
    python_catalogue.put(repository, python_catalogue.named(MODEL))
    if debugger is not None:
        (repository / MODEL / "1" / "debugpy.py").write_text(debugger)
    with open(repository / MODEL / "config.pbtxt", "a") as config:
        config.write(extra)
    (port,) = servers.free_ports(1)
    setting = f"--backend-config=python,debug={MODEL}:{port}"
    with launcher.running("python_debugging", "--model-control-mode=explicit", setting, *flags, repository=repository) as found:
        yield found, port


def check_waits(launcher, debugger: str | None, attach) -> None:
    # Its load may take no longer than that without a debugger.
    with serving(launcher, debugger, "--backend-config=python,execute-timeout-seconds=1") as (server, port):
        with open_client("http", server) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
            loading = pool.submit(client.load, MODEL)
            log = launcher.scratch / "python_debugging.log"
            said = f"model instance '{MODEL}_0' waits for a debugger (debugpy) at 127.0.0.1:{port}; its time limits are suspended"
            deadline = time.monotonic() + ATTACHES_S
            while said not in log.read_text():
                assert not loading.done() or loading.result(), "it did not wait"
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
            assert not loading.done()
            with attach(port):
                loading.result(ATTACHES_S)
                assert client.infer(MODEL, [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw
        assert f"a debugger has attached to model instance '{MODEL}_0'" in log.read_text()


def test_a_model_is_loaded_once_a_debugger_has_attached(launcher):
    check_waits(launcher, DEBUGGER, lambda port: socket.create_connection(("127.0.0.1", port)))


def test_debugpy_itself_attaches(launcher):
    if subprocess.run([sys.executable, "-c", "import debugpy"], capture_output=True).returncode != 0:
        pytest.skip("the models' interpreter has no debugpy")
    check_waits(launcher, None, attached)


@contextlib.contextmanager
def attached(port: int):
    """Attaches as an editor does, by the Debug Adapter Protocol."""
    with socket.create_connection(("127.0.0.1", port), timeout=ATTACHES_S) as editor, editor.makefile("rb") as heard:
        say(editor, 1, "initialize", {"adapterID": "test", "pathFormat": "path"})
        say(editor, 2, "attach", {"justMyCode": True})
        # Told when the adapter is ready for breakpoints.
        while hear(heard).get("event") != "initialized":
            pass
        say(editor, 3, "configurationDone", {})
        yield


def say(editor, number: int, command: str, arguments: dict) -> None:
    text = json.dumps({"seq": number, "type": "request", "command": command, "arguments": arguments}).encode()
    editor.sendall(b"Content-Length: %d\r\n\r\n" % len(text) + text)


def hear(heard) -> dict:
    length = 0
    while line := heard.readline().strip():
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    assert length, "the adapter has gone"
    return json.loads(heard.read(length))


@pytest.mark.parametrize(
    ("debugger", "flags", "extra", "why"),
    [
        (NO_DEBUGGER, (), "", "because its Python has no debugpy (it is not here); `{python} -m pip install debugpy`"),
        (BUSY, (), "", "cannot wait for a debugger at 127.0.0.1:{port}: {port} is taken; choose another port"),
        (
            DEBUGGER, (), python_catalogue.parameters(SHARE_INITIALIZE="yes"),
            f"model '{MODEL}' cannot be debugged: its instances are forks of one process",
        ),
    ],
    ids=["no debugpy", "the port is taken", "a template"],
)  # fmt: skip
def test_a_model_that_cannot_be_debugged_says_why(launcher, debugger, flags, extra, why):
    with serving(launcher, debugger, *flags, extra=extra) as (server, port), open_client("http", server) as client:
        with pytest.raises(Refused) as caught:
            client.load(MODEL)
    assert why.format(port=port, python=python_of(caught.value.text)) in caught.value.text


def python_of(text: str) -> str:
    """The interpreter that the text names."""
    return text.partition("`")[2].partition(" -m pip")[0]


def test_other_models_do_not_wait(launcher):
    repository = launcher.copy_of("python_debugging_others")
    python_catalogue.put(repository, python_catalogue.named(MODEL))
    with launcher.running("python_undebugged", "--backend-config=python,debug=another:5678", repository=repository) as found:
        with open_client("http", found) as client:
            assert client.infer(MODEL, [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw
