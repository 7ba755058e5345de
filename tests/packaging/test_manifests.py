"""Do units, images and manifests agree with what the server does?

No container engine and no cluster is needed: their structure is held against the flags and ports that the program itself tells.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request

import manifests
import pytest
import servers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGING = ROOT / "packaging"
yaml = pytest.importorskip("yaml", reason="python3 tests/setup_venv.py installs it")


def settings(program: pathlib.Path, args: list[str], environment: dict[str, str]) -> dict:
    """What `nerite serve` with these arguments and variables would do, as it says itself, defaults included. Fails for a flag it has not."""
    assert args[0] == "serve"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NERITE_")}
    done = subprocess.run([program, "config", "show", *args[1:]], capture_output=True, text=True, env={**clean, **environment})
    assert done.returncode == 0, done.stderr
    return tomllib.loads(re.sub(r"^# ([a-z0-9-]+ = )", r"\1", done.stdout, flags=re.M))


def ports_of(effective_settings: dict) -> set[int]:
    return {effective_settings["http-port"], effective_settings["grpc-port"], effective_settings["metrics-port"]}


def longest_stop(effective_settings: dict) -> int:
    return effective_settings["drain-seconds"] + effective_settings["exit-timeout-secs"]


def noted_stop(program: pathlib.Path) -> int:
    """The seconds that the packaged files give a stop, by the note of `nerite config check` about a longer one."""
    flags = ["--no-files", "--model-repository=/models", "--drain-seconds=3600"]
    done = subprocess.run([program, "config", "check", *flags], capture_output=True, text=True)
    (seconds,) = re.findall(r"a stop may take 3630 s: .* give it (\d+) s; raise theirs", done.stdout)
    return int(seconds)


def check_confined(container: dict, pod: dict) -> None:
    context = {**pod.get("securityContext", {}), **container["securityContext"]}
    assert context["runAsNonRoot"] is True and context["runAsUser"] > 0
    assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]} and context["seccompProfile"] == {"type": "RuntimeDefault"}


PROBES = {"startupProbe": "ready", "readinessProbe": "ready", "livenessProbe": "live"}


def check_probes(container: dict, http_port: int) -> None:
    by_name = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in PROBES.items():
        probed = container[probe]["httpGet"]
        assert probed["path"] == f"/v2/health/{path}"
        assert by_name.get(probed["port"], probed["port"]) == http_port


def check_shared(container: dict, pod: dict, session_socket: str) -> None:
    """The session socket and /dev/shm lie in memory, in volumes that another container of the pod can mount as well."""
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for path in (os.path.dirname(session_socket), "/dev/shm"):
        assert volumes[mounts[path]]["emptyDir"]["medium"] == "Memory"


@pytest.mark.parametrize("patches", [(), *((one,) for one in manifests.PATCHES), manifests.PATCHES], ids="-".join)
def test_the_deployment_is_what_the_server_does(program, patches):
    deployment = manifests.deployment(*patches)
    pod = deployment["spec"]["template"]["spec"]
    server = manifests.server_of(deployment)
    effective_settings = settings(program, server["args"], {one["name"]: one["value"] for one in server.get("env", [])})
    assert {port["containerPort"] for port in server["ports"]} == ports_of(effective_settings)
    check_probes(server, effective_settings["http-port"])
    assert {server[probe]["httpGet"].get("scheme", "HTTP") for probe in PROBES} == {"HTTPS" if effective_settings["http-use-ssl"] else "HTTP"}
    assert effective_settings["http-use-ssl"] == effective_settings["grpc-use-ssl"] == ("tls" in patches)
    assert pod["terminationGracePeriodSeconds"] == noted_stop(program) > longest_stop(effective_settings)
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) == effective_settings["metrics-port"]
    assert not pod.get("hostIPC") and pod["enableServiceLinks"] is False
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        check_confined(container, pod)
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
    check_shared(server, pod, effective_settings["session-socket"])
    mounts = [mount["mountPath"] for mount in server["volumeMounts"]]
    files = [one["value"] for one in server.get("env", []) if one["value"].startswith("/")]
    assert len(files) == 4 * ("tls" in patches) + ("tokens" in patches)
    assert all(os.path.dirname(one) in mounts for one in files)


def test_the_client_of_the_patch_shares_memory_with_the_server(program):
    pod = manifests.deployment("client")["spec"]["template"]["spec"]
    server, client = pod["containers"]
    session_socket = settings(program, server["args"], {})["session-socket"]
    check_shared(client, pod, session_socket)
    assert {"name": "NERITE_SESSION_SOCKET", "value": session_socket} in client["env"]


def test_a_bucket_is_copied_into_the_folder_that_the_server_reads(program):
    deployment = manifests.deployment("bucket")
    pod = deployment["spec"]["template"]["spec"]
    server = manifests.server_of(deployment)
    effective_settings = settings(program, server["args"], {one["name"]: one["value"] for one in server["env"]})
    assert effective_settings["model-control-mode"] == "poll"
    [models] = [volume for volume in pod["volumes"] if volume["name"] == "models"]
    assert models["emptyDir"] and "persistentVolumeClaim" not in models
    first, again = pod["initContainers"][0], pod["containers"][1]
    fetch = ["python", "-m", "nerite.fleet", "fetch", "s3://bucket/models", *effective_settings["model-repository"]]
    assert first["command"] == fetch and again["command"] == [*fetch, "--every", "60"]
    for one in (first, again):
        assert {"name": "models", "mountPath": "/models"} in one["volumeMounts"]


@pytest.mark.parametrize("name", ["nerite", "nerite-proxy"])
def test_the_objects_of_a_deployment_point_at_its_pods(name):
    found = manifests.documents("nerite.yaml" if name == "nerite" else "envoy.yaml")
    [deployment] = [one["spec"] for one in found if one["kind"] == "Deployment"]
    template = deployment["template"]
    labels = template["metadata"]["labels"]
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    selectors = [deployment["selector"], *(spread["labelSelector"] for spread in template["spec"]["topologySpreadConstraints"])]
    for one in found:
        if one["kind"] == "Service":
            assert {port["targetPort"] for port in one["spec"]["ports"]} == {"http", "grpc"} < ports
            assert one["spec"]["selector"].items() <= labels.items()
        elif one["kind"] == "NetworkPolicy":
            # Each port has a rule of who may connect.
            assert sorted(port["port"] for rule in one["spec"]["ingress"] for port in rule["ports"]) == sorted(ports)
            selectors.append(one["spec"]["podSelector"])
        elif one["kind"] == "PodDisruptionBudget":
            selectors.append(one["spec"]["selector"])
    assert len(selectors) >= 4 and all(one["matchLabels"].items() <= labels.items() for one in selectors)
    monitored = manifests.of_kind("pod-monitor.yaml", "PodMonitor")["spec"]
    assert labels["app.kubernetes.io/name"] in monitored["selector"]["matchExpressions"][0]["values"]
    assert {one["port"] for one in monitored["podMetricsEndpoints"]} <= ports
    assert {one["path"] for one in monitored["podMetricsEndpoints"]} == {template["metadata"]["annotations"]["prometheus.io/path"]}


def test_the_autoscaler_owns_the_number_of_servers(tmp_path):
    deployment = manifests.deployment()
    scaler = manifests.of_kind("nerite.yaml", "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"] and scaler["minReplicas"] > 1
    metrics = [one["pods"]["metric"]["name"] for one in scaler["metrics"] if one["type"] == "Pods"]
    command, environment = servers.nerite_command(ROOT / "examples" / "models")
    started = servers.start(command, environment, ["--session-socket=off"], tmp_path / "log")
    try:
        page = urllib.request.urlopen(f"http://{started.metrics}/metrics", timeout=30).read().decode()
    finally:
        servers.stop(started)
    assert metrics and all(re.search(rf"^{name}\{{", page, re.M) for name in metrics)


def test_the_claim_is_the_one_that_the_servers_mount():
    claim = manifests.of_kind("nerite.yaml", "PersistentVolumeClaim")
    pod = manifests.deployment()["spec"]["template"]["spec"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}} in pod["volumes"]


def test_the_serving_runtime_is_what_the_server_does(program):
    runtime = manifests.of_kind("serving-runtime.yaml", "ServingRuntime")
    service = manifests.of_kind("inference-service.yaml", "InferenceService")["spec"]["predictor"]["model"]
    assert service["runtime"] == runtime["metadata"]["name"] and service["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert service["modelFormat"]["name"] in {one["name"] for one in runtime["spec"]["supportedModelFormats"]}
    assert runtime["apiVersion"] == "serving.kserve.io/v1alpha1"
    spec = runtime["spec"]
    (container,) = spec["containers"]
    # KServe finds the container by this name, and models there.
    assert container["name"] == "kserve-container"
    effective_settings = settings(program, container["args"], {})
    assert effective_settings["model-repository"] == ["/mnt/models"]
    assert {port["containerPort"] for port in container["ports"]} == {effective_settings["http-port"]}
    check_probes(container, effective_settings["http-port"])
    check_confined(container, {})
    check_shared(container, spec, effective_settings["session-socket"])
    assert int(spec["annotations"]["prometheus.kserve.io/port"]) == effective_settings["metrics-port"]
    assert spec["protocolVersions"] == ["v2", "grpc-v2"]
    # What a pod gets for its end by default.
    assert longest_stop(effective_settings) < 30
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage of the Dockerfile."""
    text = (PACKAGING / "container" / "Dockerfile").read_text().replace("\\\n", " ")
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            instruction, _, rest = line.partition(" ")
            if instruction == "FROM":
                found[rest.split(" AS ")[1]] = (own := [])
            own.append((instruction, rest))
    return found


def test_the_images_of_manifests_are_those_that_the_commands_make():
    (version,) = re.findall(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)
    commands = re.findall(r"^#   docker build .* -t (\S+)(?: --target (\S+))? target/dist$", (PACKAGING / "container" / "Dockerfile").read_text(), re.M)
    made = {tag: stage or "default" for tag, stage in commands}
    assert {f"nerite:{version}", f"nerite-onnxruntime:{version}"} <= set(made) and set(made.values()) <= set(stages())
    pod = manifests.deployment(*manifests.PATCHES)["spec"]["template"]["spec"]
    runtime = manifests.of_kind("serving-runtime.yaml", "ServingRuntime")["spec"]
    containers = [*pod["containers"], *pod["initContainers"], *runtime["containers"]]
    assert {container["image"] for container in containers} <= set(made)
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("install.md", "kubernetes.md"))
    assert set(re.findall(r"nerite[\w-]*:\d+\.[\w.]+", pages)) <= set(made)


@pytest.mark.parametrize("stage", ["server", "python"])
def test_images_run_the_server_as_a_plain_user(program, stage):
    instructions = dict(stages()[stage])
    assert instructions["USER"] == "65532:65532"
    variables = dict(one.split("=", 1) for one in instructions["ENV"].split())
    entry, command = json.loads(instructions["ENTRYPOINT"]), json.loads(instructions["CMD"])
    health = json.loads(instructions["HEALTHCHECK"].partition("CMD ")[2])
    assert health == [*entry, "ready"]
    effective = settings(program, command, variables)
    assert effective["session-socket"] == "/run/nerite/session.sock"
    assert {int(port) for port in instructions["EXPOSE"].split()} == ports_of(effective)
    copied = [rest for instruction, rest in stages()[stage] if instruction == "COPY"]
    assert any(rest.endswith("--chown=65532:65532 /run/nerite /run/nerite") for rest in copied)


def test_the_image_with_onnx_runtime_is_the_server_with_its_library():
    assert stages()["onnxruntime"][0] == ("FROM", "server AS onnxruntime")
    copied = [rest for instruction, rest in stages()["onnxruntime"] if instruction == "COPY"]
    # The server looks for the library in this folder (crates/ort/src/library.rs).
    assert any("/libonnxruntime.so.* /usr/lib/" in rest for rest in copied)
    # Without --target the last stage is built.
    assert list(stages())[-1] == "default" and stages()["default"] == [("FROM", "server AS default")]


def test_the_composition_shares_memory_by_the_socket_alone(program):
    composed = yaml.safe_load((PACKAGING / "container" / "compose.yaml").read_text())
    server, client = composed["services"]["server"], composed["services"]["client"]
    for service in (server, client):
        assert not {"ipc", "pid", "privileged", "user"} & set(service)
        assert service["volumes"] == ["sockets:/run/nerite"] and service["cap_drop"] == ["ALL"]
        assert service["build"]["target"] in stages()
    assert client["network_mode"] == "none"
    effective_settings = settings(program, server["command"], {**dict(one.split("=", 1) for one in dict(stages()["server"])["ENV"].split()), **server["environment"]})
    assert {int(port.split(":")[-1]) for port in server["ports"]} == ports_of(effective_settings)
    assert os.path.dirname(effective_settings["session-socket"]) == "/run/nerite"
    assert effective_settings["model-repository"] == ["/usr/share/nerite/examples/models"]
    compile(client["command"][2], "compose.yaml", "exec")


ISOLATED = ["unshare", "--mount", "--ipc", "--pid", "--net", "--fork", "--mount-proc", "--kill-child"]
IN_ITS_OWN = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up 2>/dev/null; exec \"$@\""


def test_two_sets_of_namespaces_share_memory_as_the_composition_does(program, tmp_path):
    """What an engine makes two containers of, made by unshare: each has its own /dev/shm, IPC, processes and network."""
    if subprocess.run([*ISOLATED, "true"], capture_output=True).returncode != 0:
        pytest.skip("namespaces cannot be made here")
    composed = yaml.safe_load((PACKAGING / "container" / "compose.yaml").read_text())
    code = composed["services"]["client"]["command"][2]
    socket = tmp_path / "session.sock"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NERITE_")}
    environment = {**clean, "NERITE_SESSION_SOCKET": str(socket), "NERITE_MODEL_REPOSITORY": str(ROOT / "examples" / "models")}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([*ISOLATED, "sh", "-c", IN_ITS_OWN, "sh", program, "serve"], env=environment, stdout=log, stderr=log)
    try:
        waiting = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)"
        subprocess.run([sys.executable, "-c", waiting, socket], check=True, timeout=60)
        done = subprocess.run(
            [*ISOLATED, "sh", "-c", IN_ITS_OWN, "sh", sys.executable, "-c", code],
            env={**environment, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, timeout=60,
        )
        assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
        assert done.stdout == "session (1, 10)\n"
    finally:
        # unshare passes no other signal on; with it goes all it started.
        server.kill()
        server.wait(60)


UNIT = PACKAGING / "systemd" / "nerite.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_sound_and_confined(program, tmp_path):
    unit = tmp_path / "nerite.service"
    # The manual page and the program are not installed here.
    unit.write_text(UNIT.read_text().replace("/usr/bin/nerite", str(program)).replace("Documentation=man:nerite(1)\n", ""))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    own = [line for line in done.stderr.splitlines() if "nerite" in line]
    assert done.returncode == 0 and own == [], done.stderr
    # 10 is a service without any confinement.
    done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=30", unit], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:]


def test_the_page_makes_a_service_of_a_program(program, tmp_path):
    """Below another root, without the right to add users, and without Rust and Python on the path."""
    section = (ROOT / "docs" / "install.md").read_text().partition("## A program that somebody made")[2]
    (block,) = re.findall(r"```console\n(.*?)```", section.partition("\n## ")[0], re.S)
    root = tmp_path / "root"
    for name in ("usr/bin", "run/nerite", "given"):
        (root / name).mkdir(parents=True)
    (root / "given" / "nerite").symlink_to(program)
    stand_ins = {"useradd": "exit 0", "systemctl": "exit 0", "cargo": "exit 1", "python3": "exit 1"}
    (tmp_path / "bin").mkdir()
    for name, line in stand_ins.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho $0 $* >> {tmp_path}/called\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    lines = re.sub(r"^[$>] ", "", block, flags=re.M).replace("-o nerite ", "")
    lines = re.sub(r"(?<![\w.])/(usr/bin|etc|var/lib|run)/", rf"{root}/\1/", lines)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NERITE_")}
    clean |= {"PATH": f"{tmp_path}/bin:{root}/usr/bin:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-e", "-c", lines], cwd=root / "given", env=clean, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("7 settings, and they hold\n"), done.stdout + done.stderr
    assert [line.rpartition("/")[2] for line in (tmp_path / "called").read_text().splitlines()][-1] == "systemctl enable --now nerite"
    unit = (root / "etc" / "systemd" / "system" / "nerite.service").read_text()
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    (command,) = re.findall(r"^ExecStart=(.+)$", unit, re.M)
    effective_settings = settings(program, command.split()[1:], {})
    assert int(stop) == noted_stop(program) > longest_stop(effective_settings)
    (root / "var" / "lib" / "nerite" / "models" / "digits").symlink_to(ROOT / "examples" / "models" / "digits")
    # A socket's path has 107 bytes at the most.
    with tempfile.TemporaryDirectory() as short:
        server = servers.start(command.split(), clean, [f"--session-socket={short}/s"], tmp_path / "log")
        try:
            with urllib.request.urlopen(f"http://{server.http}/v2/models/digits/ready", timeout=30) as answer:
                assert answer.status == 200
        finally:
            servers.stop(server)


def test_the_units_file_of_settings_holds(program):
    unit = UNIT.read_text()
    # SIGHUP, by which a reload opens the log file anew, ends a server without one, but under nohup (tests/conformance/test_log_lines.py, test_process.py).
    assert re.findall(r"^ExecReload=(.+)$", unit, re.M) == ["/bin/kill -HUP $MAINPID"]
    commands = dict(re.findall(r"^(ExecStartPre|ExecStart)=(?:/usr/bin/nohup )?/usr/bin/nerite (.+)$", unit, re.M))
    assert "ExecStart=/usr/bin/nohup /usr/bin/nerite" in unit
    assert commands == {"ExecStartPre": "config check --config /etc/nerite/nerite.toml", "ExecStart": "serve --config /etc/nerite/nerite.toml"}
    filed = PACKAGING / "systemd" / "nerite.toml"
    assert subprocess.run([program, "config", "check", "--no-files", filed], capture_output=True).returncode == 0
    effective_settings = settings(program, ["serve", "--config", str(filed)], {})
    directories = dict(re.findall(r"^(RuntimeDirectory|StateDirectory)=(.+)$", unit, re.M))
    assert os.path.dirname(effective_settings["session-socket"]) == f"/run/{directories['RuntimeDirectory']}"
    assert effective_settings["model-repository"] == [f"/var/lib/{directories['StateDirectory'].split()[-1]}"]
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    assert int(stop) == noted_stop(program) > longest_stop(effective_settings)
    sysusers = (PACKAGING / "systemd" / "nerite.sysusers").read_text().split()
    assert sysusers[:2] == ["u", re.search(r"^User=(.+)$", unit, re.M)[1]]
