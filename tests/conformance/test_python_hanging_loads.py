"""What if a Python model hangs while it loads: which limits, calls and ends of clients end the load, and do other models go on meanwhile?"""

import concurrent.futures
import contextlib
import http.client
import json
import threading
import time

import pytest
from clients import Refused, fp32, http_call, open_client
from footprint import children, wait_until
from meanwhile import TooLate, again_if_too_late
from python_setup import Gates

# What each start of a model's process gets where a limit is set. The two hang for ever.
LIMIT_S = 4
# Far beyond the time that the server is given to end in, and far below it.
ENDS_S, ENDED_S = 120, 20
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
def serving(launcher, name: str, *flags: str):
    if launcher.oracle:
        pytest.skip("2.51 waits for it far longer than its limit")
    repository, gates = launcher.copy_of(name, "identity_fp32"), Gates(launcher.scratch / f"{name}_gates")
    for model, method in METHODS.items():
        (repository / model / "1").mkdir(parents=True)
        (repository / model / "config.pbtxt").write_text(CONFIG)
        (repository / model / "1" / "model.py").write_text(gates.code + HANGS.replace("METHOD", method).replace("NAME", model))
    control = ["--model-control-mode=explicit", "--load-model=identity_fp32"]
    with launcher.running(name, *control, *flags, repository=repository) as found:
        found.gates = gates
        yield found


@pytest.fixture(scope="module")
def server(launcher):
    with serving(launcher, "python_hanging_loads", f"--backend-config=python,stub-timeout-seconds={LIMIT_S}") as found:
        yield found


@pytest.fixture(scope="module")
def unlimited(launcher):
    with serving(launcher, "python_unlimited_loads") as found:
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
        return loading.result()


@pytest.mark.parametrize("name", METHODS)
def test_other_models_are_unloaded_and_loaded_meanwhile(server, name):
    with open_client("http", server) as client:
        assert TEXTS[name] in other_models_change_meanwhile(server, client, name)
    wait_until(lambda: not children(server.pid))


@pytest.mark.parametrize("name", METHODS)
def test_the_server_ends_while_a_load_hangs(launcher, name):
    with serving(launcher, f"python_{name}") as found:
        loading = threading.Thread(target=send_load, args=(found, name))
        loading.start()
        wait_until(lambda: children(found.pid))
        # The limit is 30 s.
        found.process.terminate()
        begun = time.monotonic()
        found.process.wait(ENDS_S)
        assert time.monotonic() - begun < ENDED_S
        loading.join()


@pytest.mark.parametrize("name", METHODS)
def test_an_unload_ends_a_load_that_hangs(unlimited, name):
    unlimited.gates.close(name)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, open_client("grpc", unlimited) as client:
        loading = pool.submit(http_call, unlimited.http, "POST", f"/v2/repository/models/{name}/load", {})
        unlimited.gates.wait_for(name)
        client.unload(name)
        assert f"the load of model '{name}' was ended: the model is unloaded" in loading.result().error
    wait_until(lambda: not children(unlimited.pid))


@pytest.mark.parametrize("name", METHODS)
def test_the_load_of_a_sent_configuration_ends_with_its_client(unlimited, name):
    unlimited.gates.close(name)
    config = {
        "backend": "python",
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
    }
    body = json.dumps({"parameters": {"config": json.dumps(config)}})
    with contextlib.closing(http.client.HTTPConnection(unlimited.http)) as connection:
        connection.request("POST", f"/v2/repository/models/{name}/load", body)
        unlimited.gates.wait_for(name)
    wait_until(lambda: not children(unlimited.pid))


def send_load(server, name: str) -> None:
    """Whatever becomes of it: the server ends meanwhile."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        http_call(server.http, "POST", f"/v2/repository/models/{name}/load", {})
