"""May a client that asks for many models take those of others, in control mode `demand`?"""

import os
import shutil
import subprocess
import sys
import time

import pytest
from clients import fp32, http_call, open_client

NOBODY = 65534
MODEL_BYTES = 1 << 20
ROOM = 4
GREED = 20
SECONDS = 5
CONFIG = """\
name: "%s"
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
# A model that is made of another.
ENSEMBLE = """\
name: "%s"
platform: "ensemble"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step {
    model_name: "%s" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
} }
"""
# Asks for one model after the other, from eight threads, until it is killed.
GREEDY = """\
import itertools, sys, threading, urllib.request
url, count = sys.argv[1], int(sys.argv[2])
body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}'
def ask(first):
    for turn in itertools.count(first):
        try:
            urllib.request.urlopen(f"http://{url}/v2/models/greed{turn % count}/infer", body, timeout=60).read()
        except OSError:
            pass
for first in range(8):
    threading.Thread(target=ask, args=(first * 2,)).start()
"""


def put(repository, model: str) -> None:
    version = repository / model / "1"
    version.mkdir(parents=True)
    (version / "weights").write_bytes(bytes(MODEL_BYTES))
    (repository / model / "config.pbtxt").write_text(CONFIG % model)


@pytest.fixture
def server(launcher, tmp_path):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 has no such mode")
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("no other user to be had: not root")
    put(tmp_path, "theirs")
    (tmp_path / "made_of_theirs" / "1").mkdir(parents=True)
    (tmp_path / "made_of_theirs" / "config.pbtxt").write_text(ENSEMBLE % ("made_of_theirs", "theirs"))
    for at in range(GREED):
        put(tmp_path, f"greed{at}")
    flags = ("--model-control-mode=demand", f"--models-max-bytes={ROOM * MODEL_BYTES}")
    with launcher.running("greed", *flags, repository=tmp_path) as found:
        yield found


def as_nobody(*command: str) -> list[str]:
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]


@pytest.mark.parametrize("honest_model", ["theirs", "made_of_theirs"])
def test_a_client_that_asks_for_many_models_replaces_its_own(server, honest_model):
    python = os.path.realpath(sys.executable)
    with open_client("http", server) as client:
        client.infer(honest_model, [fp32("INPUT0", [1])])
        greedy = subprocess.Popen(as_nobody(python, "-c", GREEDY, server.http, str(GREED)))
        try:
            requests, until = 0, time.monotonic() + SECONDS
            while time.monotonic() < until or server.log_text().count("leaves to make room") < 2 * GREED:
                assert time.monotonic() < until + 60, "it never asked for so many"
                client.infer(honest_model, [fp32("INPUT0", [1])])
                requests += 1
                time.sleep(0.02)
        finally:
            greedy.kill()
            greedy.wait()
        loads = server.log_text().count("loading: theirs:1")
        assert loads == 1, f"it was loaded {loads} times beside {requests} requests"
        assert "model 'theirs' leaves" not in server.log_text()


def test_only_the_operator_loads_and_unloads(server):
    with open_client("http", server) as client:
        client.infer("theirs", [fp32("INPUT0", [1])])
    script = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], b'{}', method='POST'))"
    url = f"http://{server.http}/v2/repository/models/theirs/unload"
    result = subprocess.run(as_nobody(os.path.realpath(sys.executable), "-c", script, url), capture_output=True, text=True)
    assert "HTTP Error 503" in result.stderr, result.stderr
    with open_client("http", server) as client:
        assert "theirs" in {one["name"] for one in client.index(ready=True)}
    http_call(server.http, "POST", "/v2/repository/models/theirs/unload", "{}").ok()
