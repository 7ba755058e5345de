"""Does Envoy, as the manifests for Kubernetes set it up, lose no request with a server?

Two servers on this host stand in for pods, and their addresses for what DNS says of them.
"""

import dataclasses
import http.client
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import time
import tomllib

import manifests
import numpy as np
import pytest
import servers
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

yaml = pytest.importorskip("yaml", reason="python3 tests/setup_venv.py installs it")
trustme = pytest.importorskip("trustme", reason="python3 tests/setup_venv.py installs it")

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests" / "fleet"))
setup_fleet = pytest.importorskip("setup_fleet", reason="tests/fleet/setup_fleet.py is not here")

# The program itself, not the script beside Python: that names the folder in which the environment was made.
ENVOY = next(setup_fleet.place().glob("lib/python*/site-packages/envoy/_bin/envoy"), None)
pytestmark = pytest.mark.skipif(ENVOY is None, reason="python3 tests/fleet/setup_fleet.py installs Envoy")

PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002, "admin": 9901}
PAUSE_S, LIMIT_S = 0.02, 30
CALLS = 40
PROBED = np.ones(4, np.float32)


@dataclasses.dataclass
class Proxy:
    """A running Envoy, and the servers behind it."""

    ports: dict[str, int]
    servers: list
    process: subprocess.Popen
    log: pathlib.Path
    authority: bytes | None = None

    def get(self, name: str, path: str, data: bytes | None = None) -> tuple[int, dict[str, str], str]:
        context = ssl.create_default_context(cadata=self.authority.decode()) if self.authority and name != "metrics" else None
        secured = {"context": context} if context else {}
        connection = (http.client.HTTPSConnection if context else http.client.HTTPConnection)("localhost", self.ports[name], timeout=LIMIT_S, **secured)
        try:
            connection.request("POST" if data else "GET", path, data)
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.headers.items()}, answer.read().decode()
        finally:
            connection.close()

    def wait_until(self, holds, what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert self.process.poll() is None and time.monotonic() < deadline, f"{what}:\n{self.log.read_text()[-4000:]}"
            time.sleep(PAUSE_S)

    def has(self, count: int) -> bool:
        """Whether so many servers get requests, of each protocol."""
        text = self.get("metrics", "/metrics")[2]
        counts = re.findall(r'^envoy_cluster_membership_healthy{envoy_cluster_name="(?:http|grpc)"} (\d+)$', text, re.M)
        return counts == [str(count)] * 2


def bootstrap(folder: pathlib.Path, addresses: dict[str, list[str]], ports: dict[str, int], is_tls: bool) -> pathlib.Path:
    """Writes the files of the ConfigMap, with other ports and the addresses of these servers."""
    [config] = [one for one in manifests.documents("envoy.yaml", is_tls) if one["kind"] == "ConfigMap"]
    for name, text in config["data"].items():
        for own, other in ports.items():
            text = text.replace(f"address: 0.0.0.0, port_value: {PORTS[own]} ", f"address: 127.0.0.1, port_value: {other} ")
            text = text.replace(f"address: 127.0.0.1, port_value: {PORTS[own]} ", f"address: 127.0.0.1, port_value: {other} ")
        for own in addresses:
            text = re.sub(rf"^( *)- endpoint: .*nerite-pods, port_value: {PORTS[own]} .*$", lambda found: endpoints(found[1], own, addresses), text, flags=re.M)
        (folder / name).write_text(text.replace("/etc/envoy", str(folder)))
    return folder / "envoy.yaml"


def endpoints(indent: str, own: str, addresses: dict[str, list[str]]) -> str:
    lines = []
    for address, health in zip(addresses[own], addresses["http"], strict=True):
        (host, port), health_port = address.split(":"), health.split(":")[1]
        lines.append(f"{indent}- endpoint: {{ address: {{ socket_address: {{ address: {host}, port_value: {port} }} }}, health_check_config: {{ port_value: {health_port} }} }}")
    return "\n".join(lines)


def certificates(folder: pathlib.Path) -> bytes:
    """The secret `nerite-tls`."""
    authority = trustme.CA()
    made = authority.issue_cert("nerite", "nerite-pods", "nerite-proxy", "localhost")
    (folder / "tls").mkdir()
    made.private_key_pem.write_to_path(folder / "tls" / "tls.key")
    made.cert_chain_pems[0].write_to_path(folder / "tls" / "tls.crt")
    authority.cert_pem.write_to_path(folder / "tls" / "ca.crt")
    return authority.cert_pem.bytes()


@pytest.fixture(params=["plain", "tls"])
def proxy(request, tmp_path):
    is_tls = request.param == "tls"
    authority = certificates(tmp_path) if is_tls else None
    variables = {one["name"]: one["value"].replace("/etc/nerite", str(tmp_path)) for one in manifests.server_of(manifests.deployment("tls"))["env"]} if is_tls else {}
    flags = [f"--{name.removeprefix('NERITE_').lower().replace('_', '-')}={value}" for name, value in variables.items()]
    command, environment = servers.nerite_command(ROOT / "examples" / "models")
    running = [servers.start(command, environment, ["--session-socket=off", *flags], tmp_path / f"log{number}") for number in range(2)]
    ports = dict(zip(PORTS, servers.free_ports(len(PORTS)), strict=True))
    place = bootstrap(tmp_path, {name: [getattr(one, name) for one in running] for name in ("http", "grpc")}, ports, is_tls)
    log = tmp_path / "envoy.log"
    with log.open("wb") as out:
        words = [ENVOY, "--config-path", place, "--disable-hot-restart", "--concurrency", "2"]
        process = subprocess.Popen(servers.dying_with_us([str(one) for one in words]), stdout=out, stderr=out)
    found = Proxy(ports, running, process, log, authority)
    try:
        found.wait_until(lambda: is_answered(found, "/ready"), "Envoy is not ready")
        found.wait_until(lambda: found.has(2), "not both servers are healthy")
        yield found
    finally:
        process.kill()
        process.wait(LIMIT_S)
        for one in running:
            servers.stop(one)


def is_answered(proxy: Proxy, path: str) -> bool:
    try:
        return proxy.get("metrics", path)[0] == 200
    except OSError:
        return False


def clients(proxy: Proxy, folder: pathlib.Path) -> list:
    """One for each protocol, with its classes."""
    root = str(folder / "tls" / "ca.crt")
    http_tls = {"ssl": True, "ssl_context_factory": lambda: ssl.create_default_context(cafile=root)} if proxy.authority else {}
    grpc_tls = {"ssl": True, "root_certificates": root} if proxy.authority else {}
    return [
        (http_client, http_client.InferenceServerClient(f"localhost:{proxy.ports['http']}", **http_tls)),
        (grpc_client, grpc_client.InferenceServerClient(f"localhost:{proxy.ports['grpc']}", **grpc_tls)),
    ]


def infer(module, client) -> None:
    given = module.InferInput("INPUT0", list(PROBED.shape), "FP32")
    given.set_data_from_numpy(PROBED)
    assert (client.infer("identity_fp32", [given]).as_numpy("OUTPUT0") == PROBED).all()


def answered(server) -> int:
    """The inferences that a server has answered, by its own metrics."""
    connection = http.client.HTTPConnection(server.metrics, timeout=LIMIT_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(int(float(one)) for one in re.findall(r'^nv_inference_request_success\{.*model="identity_fp32".*\} (\S+)$', text, re.M))


def test_the_requests_of_one_connection_are_spread_and_a_server_that_drains_gets_none(proxy, tmp_path):
    found = clients(proxy, tmp_path)
    for _ in range(CALLS):
        for one in found:
            infer(*one)
    counts = [answered(one) for one in proxy.servers]
    assert sum(counts) == 2 * CALLS and min(counts) > 0
    os.kill(proxy.servers[0].pid, signal.SIGUSR1)
    proxy.wait_until(lambda: proxy.has(1), "the draining server still gets requests")
    counts = [answered(one) for one in proxy.servers]
    for _ in range(CALLS):
        for one in found:
            infer(*one)
    assert [answered(one) - count for one, count in zip(proxy.servers, counts, strict=True)] == [0, 2 * CALLS]


def test_a_killed_server_costs_no_request(proxy, tmp_path):
    found = clients(proxy, tmp_path)
    for call in range(2 * CALLS):
        if call == CALLS:
            proxy.servers[0].process.kill()
        for one in found:
            infer(*one)
    proxy.wait_until(lambda: proxy.has(1), "the killed server still gets requests")
    # None is left: an error at once, in place of a try at a server that is not ready.
    proxy.servers[1].process.kill()
    proxy.wait_until(lambda: proxy.has(0), "the killed server still gets requests")
    assert proxy.get("http", "/v2/health/ready")[0] == 503


def test_the_hook_takes_a_proxy_out_of_rotation_while_it_serves_on(proxy):
    assert "connection" not in proxy.get("http", "/v2/health/live")[1]
    hook = manifests.of_kind("envoy.yaml", "Deployment")["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    seconds = [int(one) for one in re.findall(r"&& sleep (\d+)$", hook[-1])]
    assert seconds and seconds[0] < manifests.of_kind("envoy.yaml", "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    text = hook[-1].replace(f"/{PORTS['admin']}", f"/{proxy.ports['admin']}").replace(f"&& sleep {seconds[0]}", "&& read -r line <&3")
    subprocess.run([*hook[:-1], text], check=True, timeout=LIMIT_S)
    assert proxy.get("metrics", "/ready")[0] == 503
    status, headers, _ = proxy.get("http", "/v2/health/live")
    assert (status, headers["connection"]) == (200, "close")


def test_only_metrics_and_readiness_of_the_administration_are_seen(proxy):
    assert [proxy.get("metrics", path)[0] for path in ("/ready", "/metrics", "/config_dump", "/stats", "/")] == [200, 200, 404, 404, 404]
    assert proxy.get("metrics", "/quitquitquit", b"x")[0] == 404


@pytest.mark.parametrize("is_tls", [False, True])
def test_envoy_has_nothing_to_say_against_the_file(is_tls, tmp_path):
    """With the name of the servers, which is looked up when Envoy runs."""
    certificates(tmp_path)
    place = bootstrap(tmp_path, {}, {}, is_tls)
    done = subprocess.run([ENVOY, "--mode", "validate", "--config-path", place], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0 and not re.search(r"\[(warning|error|critical)\]", done.stderr), done.stderr


def test_the_proxy_agrees_with_the_servers(program):
    server = manifests.server_of(manifests.deployment())
    assert {port["name"]: port["containerPort"] for port in server["ports"]} == {name: PORTS[name] for name in ("http", "grpc", "metrics")}
    done = subprocess.run([program, "config", "show", *server["args"][1:]], capture_output=True, text=True, check=True)
    effective = tomllib.loads(re.sub(r"^# ([a-z0-9-]+ = )", r"\1", done.stdout, flags=re.M))
    [config] = [one for one in manifests.documents("envoy.yaml") if one["kind"] == "ConfigMap"]
    by_http, by_grpc, _ = yaml.safe_load(config["data"]["envoy.yaml"])["static_resources"]["clusters"]
    for cluster, protocol in ((by_http, "http"), (by_grpc, "grpc")):
        [options] = cluster["typed_extension_protocol_options"].values()
        idle_s = int(options["common_http_protocol_options"]["idle_timeout"].rstrip("s"))
        assert idle_s < effective[f"{protocol}-idle-timeout"] and effective[f"{protocol}-address"] == "0.0.0.0"
        assert cluster["health_checks"][0]["http_health_check"]["path"] == server["readinessProbe"]["httpGet"]["path"]
        assert cluster["health_checks"][0]["timeout"] == f"{server['readinessProbe']['timeoutSeconds']}s"
        [[endpoint]] = [one["lb_endpoints"] for one in cluster["load_assignment"]["endpoints"]]
        assert endpoint["endpoint"]["address"]["socket_address"] == {"address": "nerite-pods", "port_value": effective[f"{protocol}-port"]}
    # The name has the address of each pod.
    headless = [one["metadata"]["name"] for one in manifests.documents("nerite.yaml") if one["spec"].get("clusterIP") == "None"]
    assert headless == ["nerite-pods"]
