"""How are the images of the Dockerfile built, and the services of the composition run?

By podman, on the bases of `setup_containers.py`. Without systemd nobody runs a health check at its interval, so the tests run it.
"""

import json
import pathlib
import subprocess
import tempfile
import time

import pytest
import registry
import yaml
from setup_containers import podman

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONTAINER = ROOT / "packaging" / "container"
# The keys of a service that are given to podman in another way than as flags, or not at all.
NOT_FLAGS = ("build", "command", "environment", "depends_on")
# Lists that podman takes as they are, under these names.
NAMES = {"volumes": "volume", "tmpfs": "tmpfs", "cap_drop": "cap-drop", "security_opt": "security-opt"}
BUILD_S, HEALTHY_S = 300, 60


def build(target: str, context: pathlib.Path) -> str:
    """Builds a stage of the Dockerfile and returns the image's name. Skips the test if the stage installs packages and pip reaches no registry."""
    name = f"localhost/nerite-test-{target}"
    # Without layers: podman 4.3 does not see that a bind mount has other wheels, and would take those of an earlier build.
    flags = ["--pull=never", "--layers=false", "--network=host", "--format=docker"]
    flags += [f"--file={CONTAINER / 'Dockerfile'}", f"--target={target}", f"--tag={name}"]
    settings = registry.settings()
    # Only root reads it: an address may have a password in it.
    with tempfile.NamedTemporaryFile("w", prefix="pip.conf.") as configuration:
        configuration.write(registry.configuration(settings))
        configuration.flush()
        flags.append(f"--volume={configuration.name}:/etc/pip.conf:ro")
        flags += [f"--volume={path}:{path}:ro" for path in registry.local_paths(settings)]
        code, output = built(flags, context)
    if code != 0 and registry.is_out_of_reach(output):
        pytest.skip(f"pip reaches no registry while the image '{target}' is built")
    assert code == 0, output[-6000:]
    # The image that had the name before.
    podman("image", "prune", "--force")
    return name


def built(flags: list[str], context: pathlib.Path) -> tuple[int | None, str]:
    """The exit status and output of a build; no status if it takes too long, as it does where nobody answers pip."""
    try:
        done = podman("build", *flags, context, limit_s=BUILD_S)
        return done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        # They are bytes, whatever was asked for.
        return None, b"".join(one or b"" for one in (late.stdout, late.stderr)).decode(errors="replace")


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
            assert key in NOT_FLAGS, f"compose.yaml has the key '{key}', which this test does not know"
    return flags


class Composition:
    """The services of compose.yaml, each a container, with the volumes that it names."""

    def __init__(self, images: dict[str, str], ports: dict[str, str]):
        self.compose = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
        self.images, self.ports = images, ports
        self.close()
        for name, volume in self.compose["volumes"].items():
            options = [f"--opt={key}={value}" for key, value in volume["driver_opts"].items()]
            podman("volume", "create", *options, name, check=True)

    def run(self, name: str, *more: str, command: list[str] | None = None) -> subprocess.CompletedProcess:
        service = self.compose["services"][name]
        flags = [f"--name=nerite-test-{name}", *flags_of(service, self.ports), *more]
        return podman("run", *flags, self.images[service["build"]["target"]], *(command or service["command"]))

    def wait_until_healthy(self, name: str) -> None:
        """As often as it takes, with the health check of the image."""
        self.wait_until(name, "healthcheck", "run", f"nerite-test-{name}")

    def wait_until_ready(self, name: str, url: str) -> None:
        """Until the server that listens there, in the container, says that it is ready."""
        self.wait_until(name, "exec", f"nerite-test-{name}", "nerite", "ready", url)

    def wait_until(self, name: str, *words: str) -> None:
        until = time.monotonic() + HEALTHY_S
        while (done := podman(*words)).returncode != 0:
            is_running = inspected(f"nerite-test-{name}", "container")["State"]["Running"]
            assert is_running and time.monotonic() < until, done.stdout + done.stderr + podman("logs", f"nerite-test-{name}").stderr
            time.sleep(0.1)

    def close(self) -> None:
        podman("rm", "--force", "--ignore", "--time=0", *(f"nerite-test-{name}" for name in self.compose["services"]))
        podman("volume", "rm", "--force", *self.compose["volumes"])
