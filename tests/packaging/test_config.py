"""Do files of settings and variables steer a server, and do they say what is wrong with them?"""

import contextlib
import os
import pathlib
import subprocess
import tomllib
import urllib.request

import pytest
import servers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples" / "models"


def run(program, *words, **variables) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NERITE_")}
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60, env={**clean, **variables})


@contextlib.contextmanager
def serving(program, tmp_path, flags=(), **variables):
    """A server without any of the flags that tests give else; its log's path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NERITE_")}
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([program, "serve", *flags], env={**clean, **variables}, stdout=out, stderr=out)
    try:
        yield process, log
    finally:
        process.terminate()
        process.wait(60)


def test_a_server_listens_where_file_environment_and_command_line_say(program, tmp_path):
    filed, variable, given = servers.free_ports(3)
    config = tmp_path / "nerite.toml"
    config.write_text(
        f'model-repository = "{EXAMPLES}"\nsession-socket = "off"\nhttp-address = "127.0.0.1"\n'
        f"metrics-port = {filed}\ngrpc-port = {filed}\nhttp-port = {filed}\nlog-verbose = 0\n"
    )
    with serving(program, tmp_path, [f"--http-port={given}"], NERITE_CONFIG=str(config), NERITE_GRPC_PORT=str(variable), NERITE_HTTP_PORT="1") as (_, log):
        for _ in range(3000):
            if servers.is_up(f"127.0.0.1:{given}"):
                break
            servers.time.sleep(0.02)
        page = urllib.request.urlopen(f"http://127.0.0.1:{filed}/metrics", timeout=10).read()
        assert b"nv_inference_count" in page
        assert f'"Started GRPCInferenceService at 0.0.0.0:{variable}"' in log.read_text()


def test_show_tells_where_each_setting_came_from_and_can_be_read_again(program, tmp_path):
    config = tmp_path / "nerite.toml"
    config.write_text('id = "filed"\n\nload-model = ["a", "b"]\nmodel-control-mode = "explicit"\nhttp-port = 1\n')
    result = run(program, "config", "show", "--config", config, "--http-port=9", NERITE_ID="variable", NERITE_LOG_INFO="false")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert 'id = "variable"  # NERITE_ID' in lines
    assert f'load-model = ["a", "b"]  # {config}:3' in lines
    assert "http-port = 9  # command line" in lines
    assert "# grpc-port = 8001" in lines
    again = tmp_path / "again.toml"
    again.write_text(result.stdout)
    assert run(program, "config", "check", again).returncode == 0
    assert tomllib.loads(result.stdout) == {
        "id": "variable", "load-model": ["a", "b"], "model-control-mode": "explicit", "http-port": 9, "log-info": False,
    }


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("http-prot = 1\n", ":1: there is no setting 'http-prot'; did you mean 'http-port'?"),
        ("id = 'a'\n\nhttp-port = 'many'\n", ":3: http-port: Invalid option value. Got many"),
        ("load-model = ['a']\n", ": Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        ("http-port 1\n", ":1: "),
    ],
)
def test_faults_are_reported_with_file_and_line_and_end_the_start(program, tmp_path, text, fault):
    config = tmp_path / "nerite.toml"
    config.write_text(text)
    checked = run(program, "config", "check", config)
    assert checked.returncode == 1 and checked.stderr.startswith(f"{config}{fault}")
    served = run(program, "serve", "--config", config)
    assert served.returncode == 1 and fault.partition(": ")[2] in served.stderr
    alias = tmp_path / "tritonserver"
    alias.symlink_to(program)
    assert run(alias, "--config", config).returncode == 1


def test_check_names_all_that_cannot_be_used_unless_told_otherwise(program, tmp_path):
    config = tmp_path / "nerite.toml"
    config.write_text(f"model-repository = '{tmp_path / 'none'}'\nhttp-use-ssl = true\nhttp-server-cert = '{config}'\nhttp-server-key = '/no/key'\n")
    expect = [
        f"{config}:1: model-repository: there is no directory '{tmp_path / 'none'}'; make it, or name another",
        f"{config}:3: http-server-cert: '{config}' cannot be read as PEM: no items found; name",
        f"{config}:4: http-server-key: '/no/key' cannot be read as PEM: ",
    ]
    checked = run(program, "config", "check", config)
    lines = checked.stderr.splitlines()
    assert checked.returncode == 1 and len(lines) == len(expect), checked.stderr
    assert all(line.startswith(start) for line, start in zip(lines, expect)), checked.stderr
    assert run(program, "config", "check", "--no-files", config).returncode == 0
    flags = ["--config", config, "--http-use-ssl=false"]
    assert run(program, "config", "check", *flags, NERITE_MODEL_REPOSITORY=str(EXAMPLES)).returncode == 0
    other = run(program, "config", "check", *flags, NERITE_MODEL_REPOSITORY="/no/models")
    assert other.returncode == 1
    assert other.stderr == "NERITE_MODEL_REPOSITORY: model-repository: there is no directory '/no/models'; make it, or name another\n"
    assert run(program, "config", "check").returncode == 2
    assert run(program, "config", "check", config, config).returncode == 2


def test_check_looks_at_the_places_of_sandboxes_and_at_the_certificates_for_the_collector(program, tmp_path):
    missing = tmp_path / "none"
    flags = [
        f"--model-repository={EXAMPLES}", "--backend-config=python,sandbox=on", f"--backend-config=python,sandbox-read={tmp_path}:{missing}",
        "--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url=https://localhost:4318/v1/traces",
    ]  # fmt: skip
    checked = run(program, "config", "check", *flags, OTEL_EXPORTER_OTLP_CERTIFICATE=str(missing))
    assert checked.returncode == 0, checked
    assert checked.stdout.splitlines()[:-1] == [
        f"note: backend-config: python,sandbox-read: there is no '{missing}'; make it, or name another place",
        f"note: trace-config: certificates in '{missing}': No such file or directory (os error 2); name the authority's in PEM by OTEL_EXPORTER_OTLP_CERTIFICATE",
    ]
    relative = [*flags, "--backend-config=python,sandbox-write=tmp", "--http-use-ssl=true", f"--http-server-cert={missing}", "--http-server-key=/no/key"]
    refused = run(program, "config", "check", *relative)
    assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 3, refused
    assert "python,sandbox-write has 'tmp', which is no whole path; write it from '/' on" in refused.stderr
    alone = run(program, "config", "check", "--no-files", *relative, OTEL_EXPORTER_OTLP_CERTIFICATE=str(missing))
    assert alone.returncode == 0 and "note" not in alone.stdout, alone


def test_a_fault_of_a_variable_names_it_and_a_slip_is_reported(program, tmp_path):
    refused = run(program, "serve", NERITE_HTTP_PORT="many")
    assert refused.returncode == 1 and "NERITE_HTTP_PORT: http-port: Invalid option value. Got many" in refused.stderr
    missing = run(program, "serve", "--config=/no/such/file")
    assert missing.returncode == 1 and "/no/such/file: No such file or directory" in missing.stderr
    ports = [f"--{one}-port={port}" for one, port in zip(("http", "grpc", "metrics"), servers.free_ports(3))]
    flags = [f"--model-repository={EXAMPLES}", "--session-socket=off", *ports]
    with serving(program, tmp_path, flags, NERITE_GRPC_PROT="1", NERITE_SERVICE_HOST="10.0.0.1") as (_, log):
        for _ in range(3000):
            if "Started Metrics Service" in log.read_text():
                break
            servers.time.sleep(0.02)
        assert "the variable NERITE_GRPC_PROT is no setting; did you mean NERITE_GRPC_PORT?" in log.read_text()
        assert "NERITE_SERVICE_HOST" not in log.read_text()
        (port,) = (one.rpartition("=")[2] for one in ports if "http" in one)
        # What a container's health check asks.
        assert run(program, "ready", f"http://127.0.0.1:{port}").returncode == 0
        assert run(program, "ready", NERITE_HTTP_PORT=port).returncode == 0
    gone = run(program, "ready", NERITE_HTTP_PORT=port)
    assert gone.returncode == 1 and f"cannot connect to http://127.0.0.1:{port}" in gone.stderr
