"""Does a model's process wait for a debugger where the operator says so, and what is said if it cannot?"""

import concurrent.futures
import contextlib
import json
import socket
import time

import pytest
import python_catalogue
import servers
from clients import Refused, fp32, open_client

MODEL = "py_identity"
ATTACHES_S = 60


@pytest.fixture(autouse=True)
def only_here(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no such setting")


@contextlib.contextmanager
def serving(launcher, *flags: str, extra: str = "", before=()):
    """A server that has loaded nothing yet, and the port of the debugger."""
    repository = launcher.copy_of("python_debugging")
    python_catalogue.put(repository, python_catalogue.named(MODEL))
    with open(repository / MODEL / "config.pbtxt", "a") as config:
        config.write(extra)
    (port,) = servers.free_ports(1)
    flags = ["--model-control-mode=explicit", f"--backend-config=python,debug={MODEL}:{port}", *flags]
    with launcher.running("python_debugging", *flags, repository=repository, before=before) as found:
        yield found, port


def test_a_model_is_loaded_once_a_debugger_has_attached(launcher):
    # Its load may take no longer than that without a debugger.
    with serving(launcher, "--backend-config=python,execute-timeout-seconds=1") as (server, port):
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
            with attached(port):
                loading.result(ATTACHES_S)
                assert client.infer(MODEL, [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw
        assert f"a debugger has attached to model instance '{MODEL}_0'" in log.read_text()


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


def test_a_model_whose_python_has_no_debugger_says_so(launcher, tmp_path):
    (tmp_path / "debugpy.py").write_text("raise ImportError('it is not here')\n")
    with serving(launcher, before=["env", f"PYTHONPATH={tmp_path}"]) as (server, _):
        text = refusal(server)
    assert "because its Python has no debugpy (it is not here); `" in text and " -m pip install debugpy`" in text


def test_a_port_that_is_taken_is_named(launcher):
    with serving(launcher) as (server, port), socket.create_server(("127.0.0.1", port)):
        text = refusal(server)
    assert f"cannot wait for a debugger at 127.0.0.1:{port}: " in text
    assert "Address already in use; choose another port" in text


def test_the_forks_of_a_template_cannot_be_debugged(launcher):
    with serving(launcher, extra=python_catalogue.parameters(SHARE_INITIALIZE="yes")) as (server, _):
        text = refusal(server)
    assert f"model '{MODEL}' cannot be debugged: its instances are forks of one process" in text


def refusal(server) -> str:
    """Why the model is not loaded."""
    with open_client("http", server) as client, pytest.raises(Refused) as caught:
        client.load(MODEL)
    return caught.value.text


def test_other_models_do_not_wait(launcher):
    repository = launcher.copy_of("python_debugging_others")
    python_catalogue.put(repository, python_catalogue.named(MODEL))
    with launcher.running("python_undebugged", "--backend-config=python,debug=another:5678", repository=repository) as found:
        with open_client("http", found) as client:
            assert client.infer(MODEL, [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw
