"""What does the server say at its start, where does it listen, and does it end where its settings cannot hold?"""

import contextlib
import json
import os
import re
import subprocess
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from clients import TIMEOUT_S, http_call
from servers import dying_with_us, nerite_binary

LAST_LINE = "Started Metrics Service"
CONFIG = """
backend: "identity"
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
"""
AGENT = 'model_repository_agents { agents [{ name: "checksum" parameters { key: "MD5:model.onnx" value: "0" } }] }'


@pytest.fixture(autouse=True)
def not_the_oracle(launcher):
    if launcher.oracle:
        pytest.skip("these are settings and lines of nerite")


@pytest.fixture
def repository(tmp_path):
    return made(tmp_path, "m", CONFIG)


def made(folder, model: str, config: str):
    (folder / "models" / model / "1").mkdir(parents=True)
    (folder / "models" / model / "config.pbtxt").write_text(config)
    return folder / "models"


def run(*words, **environment) -> subprocess.CompletedProcess:
    """A command of nerite that ends by itself."""
    return subprocess.run(
        [str(nerite_binary()), *map(str, words)],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env={**os.environ, **environment},
    )  # fmt: skip


@contextlib.contextmanager
def started(*flags, **environment):
    """The lines of the log of a server until all its ports are open."""
    command = [str(nerite_binary()), "serve", "--session-socket=off", "--metrics-port=0", *map(str, flags)]
    with subprocess.Popen(
        dying_with_us(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if LAST_LINE in line:
                    break
            assert lines and LAST_LINE in lines[-1], "".join(lines)
            yield lines
        finally:
            process.terminate()
            process.stdout.read()


PORTS = ["--http-port=0", "--grpc-port=0"]


def warnings(lines) -> list[str]:
    return [line for line in lines if line.startswith("W")]


def test_unix_sockets_alone_serve_without_ports(repository, tmp_path):
    http, grpc = tmp_path / "http", tmp_path / "grpc"
    flags = ["--allow-http=false", "--allow-grpc=false", f"--http-socket={http}", f"--grpc-socket={grpc}"]
    with started(f"--model-repository={repository}", *flags) as lines:
        text = "".join(lines)
        assert f'Started HTTPService at unix:{http}"' in text and f'Started GRPCInferenceService at unix:{grpc}"' in text
        client = grpcclient.InferenceServerClient(f"unix:{grpc}")
        given = grpcclient.InferInput("INPUT0", [3], "FP32")
        given.set_data_from_numpy(np.array([1, 2, 3], np.float32))
        assert client.infer("m", [given]).as_numpy("OUTPUT0").tolist() == [1, 2, 3]
        client.close()
        assert run("ready", f"unix:{http}").returncode == 0
        # The settings lead there as well.
        ready = run("ready", NERITE_ALLOW_HTTP="false", NERITE_HTTP_SOCKET=str(http))
        assert ready.returncode == 0, ready.stderr
        ready = run("ready", NERITE_ALLOW_HTTP="false", NERITE_ALLOW_GRPC="false", NERITE_GRPC_SOCKET=str(grpc))
        assert ready.returncode == 0, ready.stderr
    assert not http.exists() and not grpc.exists()


def test_with_port_0_the_log_has_the_port_that_answers(repository):
    with started(f"--model-repository={repository}", *PORTS, "--http-address=127.0.0.1") as lines:
        port = re.search(r"Started HTTPService at 127\.0\.0\.1:([1-9]\d*)", "".join(lines))[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=TIMEOUT_S) as answer:
            assert answer.status == 200


WITHOUT_EFFECT = {
    "--repoagent-directory=/x": "--repoagent-directory has no effect: ",
    "--cuda-memory-pool-byte-size=0:1": "--cuda-memory-pool-byte-size has no effect: ",
    "--grpc-infer-allocation-pool-size=8": "--grpc-infer-allocation-pool-size has no effect: ",
    "--metrics-config=zap=1": "--metrics-config=zap has no effect: there is no such setting",
    "--backend-config=absent,zap=1": "--backend-config=absent,zap has no effect, except for models that have",
    "--backend-config=python,zap=1": "--backend-config=python,zap has no effect: backend 'python' has no such setting",
}


def test_each_setting_without_effect_is_one_warning_and_is_marked(repository):
    flags = [f"--model-repository={repository}", "--onnxruntime-library=none", *WITHOUT_EFFECT]
    with started(*flags, *PORTS) as lines:
        found = warnings(lines)
        assert len(found) == len(WITHOUT_EFFECT), found
        for text in WITHOUT_EFFECT.values():
            assert sum(text in line for line in found) == 1, (text, found)
    checked = run("config", "check", *flags).stdout
    shown = run("config", "show", *flags).stdout
    for text in WITHOUT_EFFECT.values():
        assert f"note: {text}" in checked
        flag = text.removeprefix("--").split("=")[0].split(" ")[0]
        assert f"# {text}" in shown or re.search(rf"^{flag} = .*; no effect here$", shown, re.MULTILINE), shown


def test_a_setting_of_a_model_without_effect_names_the_cure(tmp_path):
    repository = made(tmp_path, "m", CONFIG + "response_cache { enable: true }")
    with started(f"--model-repository={repository}", *PORTS, "--onnxruntime-library=none") as lines:
        (line,) = warnings(lines)
    text = "model 'm': these settings of its configuration have no effect: response_cache (the server has no cache; start it with --cache-config="
    assert text in line


def test_a_model_whose_agent_would_be_skipped_is_not_loaded(launcher, repository):
    made(repository.parent, "checked", CONFIG + AGENT)
    made(repository.parent, "empty", CONFIG + "model_repository_agents { }")
    with launcher.running("agents", "--model-control-mode=explicit", repository=repository) as server:
        answer = http_call(server.http, "POST", "/v2/repository/models/checked/load", {})
        assert answer.status >= 400
        for words in ["repository agent 'checksum'", "does not skip one", "remove the agent from the configuration"]:
            assert words in answer.json["error"]
        assert http_call(server.http, "POST", "/v2/repository/models/empty/load", {}).status == 200


def test_a_bucket_is_refused_with_the_way_to_use_it():
    for words in [("serve",), ("config", "check")]:
        refused = run(*words, "--model-repository=s3://bucket/models")
        assert refused.returncode == 1
        assert "`aws s3 sync s3://bucket/models models`" in refused.stderr, refused.stderr


def test_check_loads_the_models_and_ends(repository, tmp_path):
    flags = [f"--model-repository={repository}", f"--log-file={tmp_path / 'log'}", "--exit-on-error=false"]
    good = run("config", "check", "--models", *flags)
    assert good.returncode == 0, good.stderr
    assert "successfully loaded 'm'" in good.stdout and good.stdout.endswith("3 settings, and they hold\n")
    assert not (tmp_path / "log").exists(), "the log is the terminal's"
    file = tmp_path / "nerite.toml"
    file.write_text(f"model-repository = '{repository}'\n")
    assert run("config", "check", "--models", file).returncode == 0
    made(repository.parent, "broken", CONFIG.replace("TYPE_FP32", "TYPE_FLOAT32"))
    bad = run("config", "check", "--models", *flags)
    assert bad.returncode == 1
    assert "DataType has no value 'TYPE_FLOAT32'" in bad.stderr and "failed to load all models" in bad.stderr, bad.stderr
    # A setting that does not hold is said before anything is loaded.
    early = run("config", "check", "--models", *flags, "--http-port=many")
    assert early.returncode == 1 and "loaded" not in early.stdout + early.stderr


def test_a_host_without_onnx_runtime_is_warned_once(repository, tmp_path):
    bare = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": "", "VIRTUAL_ENV": "", "LD_LIBRARY_PATH": "", "ORT_DYLIB_PATH": ""}
    (found,) = json.loads(run("doctor", "onnx", "--json", **bare).stdout)["checks"]
    if found["verdict"] == "good":
        pytest.skip("the system has ONNX Runtime")
    install = "`python3 -m pip install onnxruntime`"
    assert found["verdict"] == "note" and install in found["cure"]
    flags = [f"--model-repository={repository}", *PORTS]
    with started(*flags, **bare) as lines:
        (line,) = warnings(lines)
        assert "ONNX Runtime is not found" in line and install in line
    with started(*flags, "--onnxruntime-library=none", **bare) as lines:
        assert warnings(lines) == []
