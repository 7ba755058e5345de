"""How does one machine play the nodes of a Ray cluster?

Each node is a network namespace with an address of its own, joined by a bridge, so that a node can be killed or cut off. Needs root. The head node
is `nodes[0]` and runs no replicas.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import setup_fleet

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NERITE = pathlib.Path(os.environ.get("NERITE_BIN", ROOT / "target" / "debug" / "nerite"))
NETWORK = "10.77.0"
BRIDGE = "nerite-fleet"
HEAD_PORT, REDIS_PORT = 6379, 6380
STORE_BYTES = 80_000_000
WAIT_S = 90
LOOK_EVERY_S = 0.05
# Ray finds a node that is gone in 3 s instead of 15 s.
RAY = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
}


def run(*words: object, check: bool = True) -> None:
    subprocess.run([str(word) for word in words], check=check, stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL)


def until(what: str, condition: Callable[[], object], within_s: float = WAIT_S) -> float:
    """Waits until the condition holds. Returns the seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - began


class Node:
    """A network namespace, and the processes of a Ray node in it."""

    def __init__(self, cluster: "Cluster", number: int, cpus: int):
        self.cluster, self.number, self.cpus = cluster, number, cpus
        self.space = f"{BRIDGE}-{number}"
        self.address = f"{NETWORK}.{10 + number}"
        self.link = f"nrt-fleet-{number}"
        self.runtime = cluster.folder / f"node-{number}"
        self.runtime.mkdir(mode=0o700)

    @property
    def environment(self) -> dict[str, str]:
        python = self.cluster.python
        return {
            **os.environ,
            **RAY,
            **self.cluster.environment,
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "python"),
            "NERITE_BIN": str(NERITE),
            "XDG_RUNTIME_DIR": str(self.runtime),
        }

    def inside(self, *words: object) -> list[str]:
        return ["ip", "netns", "exec", self.space, *(str(word) for word in words)]

    def make(self) -> None:
        run("ip", "netns", "add", self.space)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        run("ip", "link", "set", self.link, "master", BRIDGE, "up")
        run("ip", "-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", self.space, "link", "set", device, "up")

    def start(self) -> None:
        """Starts Ray here."""
        words = ["--head", f"--port={HEAD_PORT}", "--include-dashboard=false"] if self.number == 0 else [f"--address={self.cluster.head.address}:{HEAD_PORT}"]
        common = [f"--node-ip-address={self.address}", f"--num-cpus={self.cpus}", f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
        temporary = [f"--temp-dir={self.cluster.folder / 'ray'}"] if self.number == 0 else []
        if self.number == 0:
            # Ray sees the processes of the other nodes, and would take them for a cluster that runs on this one.
            (self.cluster.folder / "ray" / "ray_current_cluster").unlink(missing_ok=True)
        log = (self.cluster.folder / f"ray-{self.number}.log").open("ab")
        subprocess.run(self.inside(self.cluster.python, "-m", "ray.scripts.scripts", "start", *words, *common, *temporary), env=self.environment, check=True, stdout=log, stderr=log)

    def has_ray(self) -> bool:
        return any("raylet/raylet " in line for line in self.processes().values())

    def cut(self) -> None:
        """Cuts the node off from all others."""
        run("ip", "link", "set", self.link, "down")

    def heal(self) -> None:
        run("ip", "link", "set", self.link, "up")

    def processes(self) -> dict[int, str]:
        """The command lines of the processes in this namespace, by their numbers."""
        found = subprocess.run(["ip", "netns", "pids", self.space], stdout=subprocess.PIPE, text=True, check=False).stdout.split()
        lines = {}
        for pid in map(int, found):
            with contextlib.suppress(OSError):
                lines[pid] = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return lines

    def kill(self, part: str) -> list[int]:
        """Kills the processes whose command line has the text."""
        killed = [pid for pid, line in self.processes().items() if part in line]
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return killed

    def fleet(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs `nerite fleet` on this node."""
        command = self.inside(self.cluster.python, "-m", "nerite.fleet", *words)
        done = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    def status(self, name: str) -> dict:
        return json.loads(self.fleet("status", name, "--json").stdout)


class Cluster:
    """A head node and others, each with a number of processors that Ray may give away."""

    def __init__(self, folder: pathlib.Path, cpus: list[int], has_redis: bool = False):
        self.folder = folder
        self.python = setup_fleet.place() / "bin" / "python"
        self.has_redis = has_redis
        self.environment = {"RAY_REDIS_ADDRESS": f"{NETWORK}.1:{REDIS_PORT}"} if has_redis else {}
        self.nodes = [Node(self, number, count) for number, count in enumerate([0, *cpus])]

    @property
    def head(self) -> Node:
        return self.nodes[0]

    def __enter__(self) -> "Cluster":
        self.remove()
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        if self.has_redis:
            log = (self.folder / "redis.log").open("wb")
            command = ["redis-server", "--port", str(REDIS_PORT), "--bind", f"{NETWORK}.1", "--save", "", "--appendonly", "no", "--protected-mode", "no"]
            self.redis = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
            until("Redis is up", lambda: "Ready to accept" in (self.folder / "redis.log").read_text())
        for node in self.nodes:
            node.make()
        for node in self.nodes:
            node.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
        if self.has_redis:
            self.redis.kill()
            self.redis.wait()

    def remove(self) -> None:
        for node in reversed(self.nodes):
            for _ in until_none(node):
                node.kill("")
            run("ip", "link", "del", node.link, check=False)
            run("ip", "netns", "del", node.space, check=False)
        run("ip", "link", "del", BRIDGE, check=False)


def until_none(node: Node) -> Iterator[None]:
    """Goes on while the node has processes."""
    began = time.monotonic()
    while node.processes() and time.monotonic() - began < WAIT_S:
        yield

