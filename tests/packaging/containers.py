"""How are the images of the Dockerfile built, and the services of the composition run?

By podman, on the bases of `setup_containers.py`. Without systemd nobody runs a health check at its interval, so the tests run it.
"""

import json
import pathlib
import subprocess
import time

import setup_containers
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONTAINER = ROOT / "packaging" / "container"
# Where pip finds its registry; a machine may have it elsewhere than at the default.
PIP = pathlib.Path("/etc/pip.conf")
# What of a service is given to podman under another name or not at all.
TURNED = ("build", "command", "environment", "depends_on")
# Lists that podman takes as they are, under these names.
NAMES = {"volumes": "volume", "tmpfs": "tmpfs", "cap_drop": "cap-drop", "security_opt": "security-opt"}
BUILD_S, RUN_S, HEALTHY_S = 300, 60, 60


def podman(*words, limit_s: float = RUN_S, **more) -> subprocess.CompletedProcess:
    return subprocess.run(["podman", *words], env=setup_containers.environment(), capture_output=True, text=True, timeout=limit_s, **more)


def build(target: str, context: pathlib.Path) -> str:
    """Builds a stage of the Dockerfile and returns the image's name."""
    name = f"localhost/nerite-test-{target}"
    flags = ["--pull=never", "--network=host", "--format=docker", f"--file={CONTAINER / 'Dockerfile'}", f"--target={target}", f"--tag={name}"]
    if PIP.exists():
        flags.append(f"--volume={PIP}:{PIP}:ro")
    done = podman("build", *flags, context, limit_s=BUILD_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return name


def inspected(name: str, kind: str) -> dict:
    done = podman("inspect", f"--type={kind}", name, check=True)
    return json.loads(done.stdout)[0]


def flags_of(service: dict, ports: dict[str, str]) -> list[str]:
    """The flags for podman of a service of compose.yaml, at other ports of the host. Fails for a key that it does not know."""
    flags = [f"--env={name}={value}" for name, value in service.get("environment", {}).items()]
    for key, value in service.items():
        if key == "read_only":
            flags += ["--read-only"] if value else []
        elif key == "network_mode":
            flags.append(f"--network={value}")
        elif key == "ports":
            flags += [f"--publish={host}:{ports[port]}:{port}" for host, _, port in (one.rsplit(":", 2) for one in value)]
        elif key in NAMES:
            flags += [f"--{NAMES[key]}={one}" for one in value]
        else:
            assert key in TURNED, f"compose.yaml has the key '{key}', which this test does not know"
    return flags


class Composition:
    """The services of compose.yaml, each a container, with the volumes that it names."""

    def __init__(self, images: dict[str, str], ports: dict[str, str]):
        self.told = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
        self.images, self.ports = images, ports
        self.close()
        for name, volume in self.told["volumes"].items():
            options = [f"--opt={key}={value}" for key, value in volume["driver_opts"].items()]
            podman("volume", "create", *options, name, check=True)

    def run(self, name: str, *more: str, command: list[str] | None = None) -> subprocess.CompletedProcess:
        service = self.told["services"][name]
        flags = [f"--name=nerite-test-{name}", *flags_of(service, self.ports), *more]
        return podman("run", *flags, self.images[service["build"]["target"]], *(command or service["command"]))

    def wait_until_healthy(self, name: str) -> None:
        """As often as it takes, with the health check of the image."""
        until = time.monotonic() + HEALTHY_S
        while (done := podman("healthcheck", "run", f"nerite-test-{name}")).returncode != 0:
            is_running = inspected(f"nerite-test-{name}", "container")["State"]["Running"]
            assert is_running and time.monotonic() < until, done.stdout + done.stderr + podman("logs", f"nerite-test-{name}").stderr
            time.sleep(0.1)

    def close(self) -> None:
        podman("rm", "--force", "--ignore", "--time=0", *(f"nerite-test-{name}" for name in self.told["services"]))
        podman("volume", "rm", "--force", *self.told["volumes"])
