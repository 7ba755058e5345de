"""Is a request lost when a part of a fleet dies, is replaced or is cut off?

Each test does one thing to a fleet of two replicas while clients send requests to the proxy of a node that nothing happens to. It prints how long the fleet
took to have all replicas again (`pytest -s`); failed requests alone are asserted.
"""

import contextlib
import json
import os
import pathlib
import queue
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException

import load
import nodes
import numpy as np
import pytest
import repositories
import setup_fleet
import tritonclient.grpc
import tritonclient.http
from load import Load
from nerite import _probe
from tritonclient.utils import InferenceServerException

NAME = "fleet"
MISSING = [name for name in ("ip", "redis-server") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.skipif(not setup_fleet.place().exists(), reason="no Ray and Envoy: python3 tests/fleet/setup_fleet.py"),
    pytest.mark.skipif(bool(MISSING) or os.geteuid() != 0, reason=f"wants root, ip and redis-server; missing: {MISSING}"),
    pytest.mark.timeout(300),
]


class Fleet:
    """A fleet of two replicas on three nodes."""

    def __init__(self, cluster: nodes.Cluster):
        self.cluster = cluster
        self.head, self.client_node = cluster.head, cluster.nodes[1]
        self.repositories = {number: repositories.make(cluster.folder / f"release-{number}", number) for number in (1, 2)}
        self.release = 1
        self.settings: dict = {"name": NAME, "replicas": 2, "scale": {"down_after_s": 3}, "flags": {"log-access": True}}

    def write(self, **more: object) -> pathlib.Path:
        path = self.cluster.folder / "fleet.yaml"
        path.write_text(json.dumps({"model_repository": str(self.repositories[self.release]), **self.settings, **more}))
        return path

    def up(self, **more: object) -> None:
        self.head.fleet("up", self.write(**more), "--within", "120")

    def roll(self, check: bool = True, **more: object) -> subprocess.CompletedProcess[str]:
        return self.head.fleet("roll", self.write(**more), "--within", "120", check=check)

    def replicas(self) -> list[dict]:
        return [one for one in self.head.status(NAME)["replicas"] if one.get("is_ready") and not one["is_lost"] and not one.get("is_stopping")]

    def node_of(self, replica: dict) -> nodes.Node:
        return next(node for node in self.cluster.nodes if node.address == replica["host"])

    def victim(self) -> dict:
        """A replica that is not on the clients' node."""
        return next(one for one in self.replicas() if one["host"] != self.client_node.address)

    def is_whole(self) -> bool:
        """Whether all is as after the first start. Starts Ray on nodes that have lost it: it ends on a node that was cut off."""
        for node in self.cluster.nodes:
            node.heal()
            if not node.has_ray():
                nodes.until("the node has no processes", lambda node=node: not node.kill(""))
                node.start()
        shown = self.head.status(NAME)
        return len(shown["replicas"]) == len(self.replicas()) == 2 and len([one for one in shown["proxies"] if one.get("pid")]) == len(self.cluster.nodes)

    def load(self, **more: object) -> Load:
        return Load(self.client_node.address, **more)


def say(what: str, seconds: float, one: Load) -> None:
    print(f"\n{what}: {len(one.failures)} of {one.answered + len(one.failures)} requests failed, back after {seconds:.1f} s, longest request {one.longest_s:.2f} s")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    # The path of a socket in it must be short.
    folder = tmp_path_factory.mktemp("fleet")
    with nodes.Cluster(folder, cpus=[2, 2, 2], has_redis=True) as cluster:
        made = Fleet(cluster)
        made.up()
        yield made


@pytest.fixture(autouse=True)
def whole(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test all nodes and both replicas are back."""
    yield
    if request.node.name.startswith("test_down_leaves_nothing"):
        return
    nodes.until("all nodes and both replicas are there", fleet.is_whole)


@contextlib.contextmanager
def requests(fleet: Fleet, **more: object) -> Iterator[Load]:
    """Clients before, while and after the body of the `with` block runs. No request may fail."""
    with fleet.load(**more) as one:
        one.mark()
        nodes.until("requests are answered", one.more)
        yield one
        one.mark()
        nodes.until("requests are answered again", one.more)
    assert one.failures == []


def test_a_killed_server_is_back_and_no_request_is_lost(fleet: Fleet) -> None:
    with requests(fleet) as one:
        for replica in fleet.replicas():
            os.kill(replica["pid"], signal.SIGKILL)
            seconds = nodes.until("the server is ready again", lambda: answers(replica["http"]))
            say("kill -9 of a nerite process", seconds, one)
            # Proxies must have seen it, before the other one goes.
            nodes.until("both are ready", lambda: len(fleet.replicas()) == 2)
            one.mark()
            nodes.until("requests are answered", lambda: one.more(100))
        

def answers(place: str) -> bool:
    with contextlib.suppress(OSError, HTTPException):
        return _probe.get(place, "/v2/health/ready", is_behind_proxy=True)[0] == 200
    return False


def test_a_killed_raylet_costs_no_request(fleet: Fleet) -> None:
    with requests(fleet) as one:
        node = fleet.node_of(fleet.victim())
        assert node.kill("raylet/raylet ")
        seconds = nodes.until("both are ready elsewhere", lambda: len(found := fleet.replicas()) == 2 and all(replica["host"] != node.address for replica in found))
        say("kill -9 of a raylet with its replica", seconds, one)


def test_the_head_node_is_killed_and_replicas_serve_on(fleet: Fleet) -> None:
    with requests(fleet) as one:
        nodes.until("the head node has no processes", lambda: not fleet.head.kill(""))
        one.mark()
        nodes.until("replicas serve on", lambda: one.more(300))
        began = time.monotonic()
        fleet.head.start()
        nodes.until("both are ready", lambda: len(fleet.replicas()) == 2)
        say("kill -9 of the head node's processes", time.monotonic() - began, one)
        fleet.up()


def test_a_proxy_with_new_settings_and_endpoints_loses_nothing(fleet: Fleet) -> None:
    with requests(fleet) as one:
        before = {proxy["host"]: proxy["pid"] for proxy in fleet.head.status(NAME)["proxies"]}
        fleet.settings["proxy"] = {"request_bytes_max": "32MiB"}
        fleet.up()
        assert pids(fleet) & set(before.values()) == set()
        fleet.up(replicas=3)
        # Settings with a fault are refused, and those before stay.
        wrong = fleet.head.fleet("up", fleet.write(proxy={"tls": {"certificate": "/none", "key": "/none"}}), check=False)
        assert wrong.returncode == 1 and "does not serve" in wrong.stderr and "/none" in wrong.stderr, wrong.stderr
        fleet.settings["proxy"] = {"request_bytes_max": "33MiB"}
        fleet.up()
        after = {proxy["host"]: proxy["pid"] for proxy in fleet.head.status(NAME)["proxies"]}
        assert all(before[host] != after[host] for host in before)
        say("proxies reloaded, 2 → 3 → 2 replicas", 0, one)


def pids(fleet: Fleet) -> set[int]:
    return {proxy["pid"] for proxy in fleet.head.status(NAME)["proxies"]}


def test_a_roll_replaces_all_replicas_and_no_old_one_answers_afterwards(fleet: Fleet) -> None:
    with requests(fleet) as one:
        began = time.monotonic()
        fleet.release = 2
        fleet.roll()
        ended = time.monotonic()
        say("roll of both replicas", ended - began, one)
    assert max(one.releases) == 2 and one.releases[2] > ended > one.releases[1]
    assert {replica["release"] for replica in fleet.replicas()} == {fleet.head.status(NAME)["release"]}


def test_a_roll_that_does_not_get_ready_goes_back(fleet: Fleet) -> None:
    fleet.repositories[3] = repositories.broken(fleet.cluster.folder / "release-3")
    before = {replica["id"] for replica in fleet.replicas()}
    kept, fleet.release = fleet.release, 3
    with requests(fleet) as one:
        said = fleet.roll(check=False).stderr
        say("roll to a model that does not load", 0, one)
    fleet.release = kept
    assert "failed, back to" in said and "model.onnx" in said
    assert {replica["id"] for replica in fleet.replicas()} == before


def test_replicas_come_with_the_load_and_go_again(fleet: Fleet) -> None:
    fleet.up(replicas={"min": 1, "max": 4})
    nodes.until("one replica is left", lambda: len(fleet.replicas()) == 1)
    with fleet.load(clients={"slow": 12}) as one:
        seconds = nodes.until("four are ready", lambda: len(fleet.replicas()) == 4)
        say("load of 24 clients, 1 → 4 replicas", seconds, one)
    assert one.failures == []
    with requests(fleet, clients={"release": 1}) as one:
        seconds = nodes.until("one replica is left", lambda: len(fleet.replicas()) == 1)
        say("less load, 4 → 1 replicas", seconds, one)
    fleet.up()


def test_a_node_is_cut_off(fleet: Fleet) -> None:
    with fleet.load() as one:
        one.mark()
        nodes.until("requests are answered", one.more)
        node = fleet.node_of(fleet.victim())
        node.cut()
        began = time.monotonic()
        seconds = nodes.until("both are ready elsewhere", lambda: len(found := fleet.replicas()) == 2 and all(replica["host"] != node.address for replica in found))
        say("partition of a node", seconds, one)
        node.heal()
        one.mark()
        nodes.until("requests are answered", lambda: one.more(300))
        say("healed", time.monotonic() - began, one)
    assert one.failures == [] and one.longest_s < load.LIMIT_S


def grpc(fleet: Fleet) -> tritonclient.grpc.InferenceServerClient:
    return tritonclient.grpc.InferenceServerClient(f"{fleet.client_node.address}:8001")


def http(fleet: Fleet) -> tritonclient.http.InferenceServerClient:
    return tritonclient.http.InferenceServerClient(f"{fleet.client_node.address}:8000")


def step(client: object, library: object, id: object, number: int, is_first: bool = False, is_last: bool = False) -> int:
    """One step of a sequence."""
    tensor = library.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[number]], np.int32))
    return int(client.infer("sequence", [tensor], sequence_id=id, sequence_start=is_first, sequence_end=is_last).as_numpy("OUTPUT0")[0, 0])


PROTOCOLS = [(http, tritonclient.http), (grpc, tritonclient.grpc)]


@pytest.mark.parametrize(("connect", "library"), PROTOCOLS, ids=["http", "grpc"])
@pytest.mark.parametrize("form", [lambda number: 1000 + number, lambda number: f"sequence-{number}"], ids=["numbers", "texts"])
def test_a_sequence_stays_on_one_replica(fleet: Fleet, connect: Callable, library: object, form: Callable) -> None:
    ids = [form(number) for number in range(12)]
    with connect(fleet) as client:
        for number in range(4):
            for id in ids:
                assert step(client, library, id, number, number == 0, number == 3) == number
    counts = [served(replica, "sequence") for replica in fleet.replicas()]
    assert all(counts), f"all sequences are on one replica: {counts}"


def served(replica: dict, model: str) -> int:
    with urllib.request.urlopen(f"http://{replica['metrics']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith("nv_inference_request_success") and f'model="{model}"' in line)


@pytest.mark.parametrize(("connect", "library"), PROTOCOLS, ids=["http", "grpc"])
def test_a_sequence_on_a_killed_replica_ends_with_an_error(fleet: Fleet, connect: Callable, library: object) -> None:
    before = {replica["id"]: served(replica, "sequence") for replica in fleet.replicas()}
    with connect(fleet) as client:
        step(client, library, 77, 0, is_first=True)
        replica = next(one for one in fleet.replicas() if served(one, "sequence") > before[one["id"]])
        os.kill(replica["pid"], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(InferenceServerException, match="must specify the START flag|upstream connect error|ended or was cut off"):
            for number in range(1, 1000):
                step(client, library, 77, number)
        assert time.monotonic() - began < load.LIMIT_S


CLIENT = """
import sys, numpy as np, nerite
client = nerite.connect("fleet:fleet")
model = client.model("release")
for line in sys.stdin:
    out = model(np.zeros(16, np.float32))
    print(client.transport, int(out["OUTPUT0"][0]), flush=True)
"""


def test_a_program_on_a_replicas_node_uses_shared_memory_and_the_proxy_while_there_is_none(fleet: Fleet) -> None:
    node = fleet.node_of(fleet.replicas()[0])
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(node.runtime)}
    with subprocess.Popen(node.inside(sys.executable, "-c", CLIENT), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:

        def call() -> str:
            program.stdin.write("\n")
            program.stdin.flush()
            return program.stdout.readline().split()[0]

        assert call() == "session"
        assert len(node.kill("nerite serve")) == 1
        nodes.until("the program uses the proxy", lambda: call() == "inline")
        nodes.until("the program uses shared memory again", lambda: call() == "session")
        program.stdin.close()
    assert program.returncode == 0


HOSTILE_ID = "a\\r\\nContent-Length: 0\\r\\n\\r\\nPOST /v2/repository/models/release/unload HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"


def test_a_sequence_id_cannot_bring_a_request_of_its_own(fleet: Fleet) -> None:
    """The id gets into a header. A body that the proxy does not parse could end the header there."""
    row = '"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]}]'
    for id in (HOSTILE_ID, HOSTILE_ID.encode().decode("unicode_escape")):
        body = f'{{"x": 1, "sequence_id": "{id}", "parameters": {{"sequence_id": "{id}", "sequence_start": true, "sequence_end": true}}, {row}}}'
        connection = HTTPConnection(fleet.client_node.address, 8000, timeout=load.LIMIT_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v2/models/sequence/infer", body)
            connection.getresponse().read()
    with grpc(fleet) as client:
        # Not two bytes, and not what a header can have.
        for id in ("s" * 128, "a\r\nb", "0"):
            assert step(client, tritonclient.grpc, id, 5, is_first=True) == 5
            assert step(client, tritonclient.grpc, id, 6, is_last=True) == 6
    for replica in fleet.replicas():
        log = pathlib.Path(replica["session"]).with_name("log").read_text()
        assert "repository/models/release/unload" not in log
    with http(fleet) as client:
        assert client.is_model_ready("release")


def test_a_client_behind_the_proxy_is_no_user_of_the_replicas_host(fleet: Fleet) -> None:
    """Programs of the host are known by their user, and have rights to its memory. Clients of the proxy have none, also if it runs on that host."""
    replicas = fleet.replicas()
    node = fleet.node_of(replicas[0])
    # The request says that its connection ends after the response.
    code = f"import urllib.request as r; a = r.urlopen('http://{node.address}:8000/v2/models/release'); print(a.status, a.read())"
    logs = [pathlib.Path(one["session"]).with_name("log") for one in replicas]
    for _ in range(20):
        said = subprocess.run(node.inside(sys.executable, "-c", code), stdout=subprocess.PIPE, text=True, check=True).stdout
        assert said.startswith("200"), said
    lines = [line for log in logs for line in log.read_text().splitlines() if "access: " in line and 'request="GET /v2/models/release"' in line]
    assert len(lines) >= 20
    # The replica on the same host knows that the client is there, too, but not whose it is.
    peers = {line.partition('peer="')[2].partition('"')[0] for line in lines}
    assert peers == {"an unidentified client of this host", f"address {node.address} behind a proxy"}, peers


def test_a_stream_on_a_killed_replica_ends_with_an_error(fleet: Fleet) -> None:
    answers: queue.Queue = queue.Queue()
    with grpc(fleet) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        tensors = [tritonclient.grpc.InferInput("IN", [500], "INT32"), tritonclient.grpc.InferInput("DELAY", [500], "FP32")]
        tensors[0].set_data_from_numpy(np.arange(500, dtype=np.int32))
        tensors[1].set_data_from_numpy(np.full(500, 50, np.float32))
        client.async_stream_infer("stream", tensors)
        result, error = answers.get(timeout=30)
        assert error is None and result.as_numpy("OUT")[0] == 0
        for replica in fleet.replicas():
            os.kill(replica["pid"], signal.SIGKILL)
        began = time.monotonic()
        while error is None:
            result, error = answers.get(timeout=load.LIMIT_S)
        print(f"\nstream on a killed replica: after {time.monotonic() - began:.2f} s: {error}")
        client.stop_stream()


def test_a_killed_proxy_is_back_and_clients_of_others_notice_nothing(fleet: Fleet) -> None:
    node = fleet.cluster.nodes[2]
    with requests(fleet) as one:
        assert node.kill("envoy -c")
        with tritonclient.http.InferenceServerClient(f"{node.address}:8000") as client:
            seconds = nodes.until("the proxy answers again", lambda: is_ready(client))
        say("kill -9 of a proxy", seconds, one)


def is_ready(client: tritonclient.http.InferenceServerClient) -> bool:
    with contextlib.suppress(OSError):
        return client.is_server_ready()
    return False


def test_models_can_be_in_a_bucket(fleet: Fleet) -> None:
    bucket = f"file://{fleet.repositories[fleet.release]}"
    with requests(fleet) as one:
        fleet.up(model_repository=bucket)
        say("from a folder to a bucket", 0, one)
    with requests(fleet):
        fleet.up()


def test_calls_that_change_one_replica_are_refused(fleet: Fleet) -> None:
    refused = "is for one replica, and a fleet has several"
    for connect, _ in PROTOCOLS:
        with connect(fleet) as client:
            for call in (
                lambda: client.load_model("release"),
                lambda: client.unload_model("release"),
                lambda: client.register_system_shared_memory("region", "/region", 64),
                lambda: client.unregister_system_shared_memory(),
            ):
                with pytest.raises(InferenceServerException, match=refused):
                    call()
            assert client.is_model_ready("release")


def test_a_request_beyond_the_limit_is_refused_and_costs_nobody_else(fleet: Fleet) -> None:
    with requests(fleet):
        for connect, library in PROTOCOLS:
            with connect(fleet) as client:
                tensor = library.InferInput("INPUT0", [20 << 20], "FP32")
                tensor.set_data_from_numpy(np.zeros(20 << 20, np.float32))
                # Over HTTP the proxy refuses before the whole request is sent, so a client may see the end of the connection alone.
                with pytest.raises((InferenceServerException, OSError), match="[Tt]oo [Ll]arge|reset|[Bb]roken pipe"):
                    client.infer("release", [tensor])


def test_the_commands_name_what_is_wrong(fleet: Fleet) -> None:
    assert "there is no fleet 'other'; the cluster has fleet" in fleet.head.fleet("status", "other", check=False).stderr
    path = fleet.cluster.folder / "wrong.yaml"
    path.write_text("name: other\nmodel_repository: models\n")
    assert "give an absolute path" in fleet.head.fleet("up", path, check=False).stderr
    other = {"name": "other", "model_repository": str(fleet.repositories[1])}
    path.write_text(json.dumps(other))
    assert f"port 8000 is that of fleet '{NAME}'" in fleet.head.fleet("up", path, check=False).stderr


def test_a_fleet_that_cannot_be_says_why_and_ends(fleet: Fleet) -> None:
    path = fleet.cluster.folder / "other.yaml"
    other = {"name": "other", "model_repository": str(fleet.repositories[1]), "proxy": {"http_port": 8100, "grpc_port": 8101}}

    def refused(**more: object) -> str:
        path.write_text(json.dumps({**other, **more}))
        done = fleet.head.fleet("up", path, check=False)
        assert done.returncode == 1, done.stdout
        fleet.head.fleet("down", "other")
        return done.stderr

    assert "was not ready within 2 s; has a node room for 64 cpu?" in refused(resources={"cpu": 64}, rollout={"ready_within_s": 2})
    assert "does not get ready" in refused(model_repository=str(repositories.broken(fleet.cluster.folder / "broken")))
    busy = subprocess.Popen(fleet.client_node.inside(sys.executable, "-m", "http.server", "8100"), stderr=subprocess.DEVNULL)
    try:
        nodes.until("the other program listens", lambda: listens(fleet.client_node.address, 8100))
        assert f"the proxy on {fleet.client_node.address} does not serve" in refused()
    finally:
        busy.kill()
        busy.wait()


def listens(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port)):
        return True
    return False


def test_down_leaves_nothing_also_if_the_command_was_interrupted(fleet: Fleet) -> None:
    assert fleet.head.fleet("down", NAME, "--within", "0.1", check=False).returncode == 1
    nodes.until("the fleet has ended", lambda: fleet.head.fleet("status", NAME, check=False).returncode == 1)
    fleet.up()
    fleet.head.fleet("down", NAME)
    nodes.until("no server and no proxy runs", lambda: not [line for node in fleet.cluster.nodes for line in node.processes().values() if "nerite serve" in line or "envoy -c" in line])
    assert "the cluster has none" in fleet.head.fleet("status", NAME, check=False).stderr
    assert not list(fleet.cluster.folder.glob("node-*/nerite/fleet-*"))
