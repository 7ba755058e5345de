"""What if a Python model hangs while it loads: does the load end in time, and do unloads, other models and the server's end go on meanwhile?"""

import concurrent.futures
import contextlib
import http.client
import threading

import pytest
from clients import Refused, fp32, http_call, open_client
from footprint import children, wait_until
from meanwhile import TooLate, again_if_too_late
from python_setup import Gates

# What each start of a model's process gets. The two hang for ever.
LIMIT_S = 4
# Far beyond the time that the server is given to end in.
ENDS_S = 120
HANGS = """\
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    METHOD
        # It only says that it is here.
        pass_gate("NAME", lambda: True)
        time.sleep(86400)

    def execute(self, requests):
        return []
"""
CONFIG = """\
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
"""
METHODS = {
    "hangs_in_initialize": "def initialize(self, args):",
    "hangs_in_completion": "@staticmethod\n    def auto_complete_config(config):",
}
TIMED_OUT = "Timed out occurred while waiting for the stub process. Failed to "
HAD = f" (it had {LIMIT_S} seconds, "
TEXTS = {
    "hangs_in_initialize": f"{TIMED_OUT}initialize model instance hangs_in_initialize_0{HAD}",
    "hangs_in_completion": f"{TIMED_OUT}complete the configuration of model hangs_in_completion{HAD}",
}


@contextlib.contextmanager
def serving(launcher, name: str, limit_s: int, *flags: str):
    if launcher.oracle:
        pytest.skip("2.51 waits for it far longer than its limit")
    repository, gates = launcher.copy_of(name, "identity_fp32"), Gates(launcher.scratch / f"{name}_gates")
    for model, method in METHODS.items():
        (repository / model / "1").mkdir(parents=True)
        (repository / model / "config.pbtxt").write_text(CONFIG)
        (repository / model / "1" / "model.py").write_text(gates.code + HANGS.replace("METHOD", method).replace("NAME", model))
    limit = f"--backend-config=python,stub-timeout-seconds={limit_s}"
    control = ["--model-control-mode=explicit", "--load-model=identity_fp32"]
    with launcher.running(name, limit, *control, *flags, repository=repository) as found:
        found.gates = gates
        yield found


@pytest.fixture(scope="module")
def server(launcher):
    with serving(launcher, "python_hanging_loads", LIMIT_S) as found:
        yield found


def load(server, name: str) -> str:
    """What the refusal of the load says. On a busy machine the limit may end it before it hangs where it is to hang."""
    server.gates.close(name)
    with open_client("http", server) as client, pytest.raises(Refused) as caught:
        client.load(name)
    if not server.gates.has_come(name):
        raise TooLate
    return caught.value.text


def answers(client) -> bool:
    sent = fp32("INPUT0", [1, 2])
    return client.infer("identity_fp32", [sent]).outputs["OUTPUT0"].raw == sent.raw


@pytest.mark.parametrize("name", METHODS)
@again_if_too_late
def test_the_load_ends_in_time_and_says_which_limit_it_was(server, name):
    with concurrent.futures.ThreadPoolExecutor(1) as pool, open_client("grpc", server) as client:
        loading, answered = pool.submit(load, server, name), 0
        while not loading.done():
            assert answers(client)
            answered += 1
        assert TEXTS[name] in loading.result(), loading.result()
        assert answered > 10, answered
        assert not client.model_ready(name)


@again_if_too_late
def other_models_change_meanwhile(server, client, name: str) -> str:
    """What the refusal of the load says."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, server, name)
        wait_until(lambda: children(server.pid))
        client.unload("identity_fp32")
        client.load("identity_fp32")
        assert answers(client)
        if loading.done():
            raise TooLate
        # Its own unload comes after its load.
        client.unload(name)
        return loading.result()


@pytest.mark.parametrize("name", METHODS)
def test_other_models_are_unloaded_and_loaded_meanwhile(server, name):
    with open_client("http", server) as client:
        assert TEXTS[name] in other_models_change_meanwhile(server, client, name)
    wait_until(lambda: not children(server.pid))


@pytest.mark.parametrize("name", METHODS)
def test_the_server_ends_while_a_load_hangs(launcher, name):
    with serving(launcher, f"python_{name}", 86400, "--exit-timeout-secs=2") as found:
        loading = threading.Thread(target=send_load, args=(found, name))
        loading.start()
        wait_until(lambda: children(found.pid))
        found.process.terminate()
        found.process.wait(ENDS_S)
        loading.join()


def send_load(server, name: str) -> None:
    """Whatever becomes of it: the server ends meanwhile."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        http_call(server.http, "POST", f"/v2/repository/models/{name}/load", {})
