#!/usr/bin/env python3
"""Where do the base images come from on which the tests build the images of the Dockerfile, and do containers run on this machine?

    python3 tests/packaging/setup_containers.py       # makes the bases in target/containers, unless they are there, and runs a container

No registry of images is asked. Each base is put together from Debian's packages and stands in for the image of its name. They are in a storage of their
own, which the user's podman does not see. It needs apt-get, root, and Debian's packages podman, runc, netavark and iptables.

The base of the server has the packages of the image that it stands in for. The one with a Python has Debian's Python, which is older.

An engine may be installed and not work: runc may not be allowed to make control groups, or the kernel has no NAT. So a container is run as the tests run
theirs. Where that fails, the tests are skipped with the reason.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "target" / "containers"
WITH_PYTHON = "docker.io/library/python:3.12-slim-bookworm"
# The name in the Dockerfile, and the packages. What they depend on is added.
BASES = {
    "docker.io/library/debian:12-slim": ("dash", "coreutils", "tar", "gzip"),
    WITH_PYTHON: ("dash", "coreutils", "libstdc++6", "python3", "python3-pip"),
    "gcr.io/distroless/cc-debian12:nonroot": (
        "base-files", "libc6", "libgcc-s1", "libgomp1", "libssl3", "libstdc++6", "media-types", "netbase", "tzdata",
    ),
}  # fmt: skip
CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
LIMIT = 4096
# The container that is tried, and its volume.
TRIAL = "nerite-test-trial"
RUN_S, ANSWER_S = 60, 30
TOOLS = ("podman", "runc", "iptables", "apt-get", "dpkg-deb")
# Nothing here needs systemd. runc takes control groups of both versions, also mixed.
CONTAINERS = """[containers]
log_driver = "k8s-file"
default_ulimits = [{limits}]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
tmp_dir = "{folder}/tmp"
"""
STORAGE = """[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


def environment() -> dict[str, str]:
    """The variables with which podman uses the storage of the tests."""
    # By default it asks for more than the limits of this process, which not every root may raise.
    limits = [f'"{name}={LIMIT}"' for name in ("nofile", "nproc")]
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "containers.conf").write_text(CONTAINERS.format(folder=FOLDER, limits=", ".join(limits)))
    (FOLDER / "storage.conf").write_text(STORAGE.format(folder=FOLDER))
    return {
        **os.environ,
        "CONTAINERS_CONF": str(FOLDER / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(FOLDER / "storage.conf"),
        # Steps of a build run by chroot, which needs no runtime.
        "BUILDAH_ISOLATION": "chroot",
    }


def missing() -> list[str]:
    """What cannot be had here."""
    lacks = [tool for tool in TOOLS if shutil.which(tool) is None]
    return lacks if os.geteuid() == 0 else [*lacks, "root"]


def podman(*words, limit_s: float = RUN_S, **more) -> subprocess.CompletedProcess:
    return subprocess.run(["podman", *words], env=environment(), capture_output=True, text=True, timeout=limit_s, **more)


def bases() -> pathlib.Path:
    """The file that says which bases were made."""
    return FOLDER / "stamp"


def outcome() -> pathlib.Path:
    """The file with what went wrong when a container was tried. It is empty if all went well."""
    return FOLDER / "outcome"


def has_bases() -> bool:
    is_current = bases().exists() and bases().read_text() == json.dumps(BASES)
    return is_current and all(podman("image", "exists", name).returncode == 0 for name in BASES)


def why_not() -> str | None:
    """Why containers cannot run here. None if they can."""
    if lacks := missing():
        return f"containers need {', '.join(lacks)}"
    if not has_bases() or not outcome().exists():
        return "tests/packaging/setup_containers.py makes the bases of images"
    fault = outcome().read_text()
    return f"containers cannot run here: {fault}" if fault else None


def unpack(packages: tuple[str, ...], work: pathlib.Path) -> pathlib.Path:
    """The files of the packages and of all that they depend on, as if nothing was installed before."""
    archives, root, nothing = work / "archives", work / "root", work / "status"
    nothing.touch()
    (archives / "partial").mkdir(parents=True)
    root.mkdir()
    command = ["apt-get", "install", "--download-only", "--no-install-recommends", "-y", "-qq"]
    options = ["-o", "APT::Sandbox::User=root", "-o", f"Dir::State::status={nothing}", "-o", f"Dir::Cache::archives={archives}"]
    subprocess.run([*command, *options, *packages], check=True, stdout=subprocess.DEVNULL)
    for archive in sorted(archives.glob("*.deb")):
        files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", root, "--keep-directory-symlink"], stdin=files.stdout, check=True)
        if files.wait() != 0:
            raise RuntimeError(f"dpkg-deb cannot read {archive}")
    finish(root)
    return root


def finish(root: pathlib.Path) -> None:
    """What the packages' own scripts would do, so far as the Dockerfile wants it."""
    for name, target in (("bin/sh", "dash"), ("usr/bin/python", "python3")):
        if (root / name).parent.joinpath(target).exists() and not (root / name).exists():
            (root / name).symlink_to(target)
    # Debian's pip refuses to install beside Debian's packages; that of the image it stands in for does not.
    for refusal in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        refusal.unlink()
    certificates = root / CERTIFICATES.relative_to("/")
    if CERTIFICATES.exists() and not certificates.exists():
        certificates.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CERTIFICATES, certificates)
    (root / "tmp").mkdir(mode=0o1777, exist_ok=True)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")
    (root / "etc" / "group").write_text("root:x:0:\nnonroot:x:65532:\n")


def install() -> None:
    bases().unlink(missing_ok=True)
    for name, packages in BASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            root = unpack(packages, pathlib.Path(scratch))
            tree = subprocess.Popen(["tar", "-c", "-C", root, "."], stdout=subprocess.PIPE)
            subprocess.run(["podman", "import", "--quiet", "-", name], stdin=tree.stdout, check=True, stdout=subprocess.DEVNULL, env=environment())
            if tree.wait() != 0:
                raise RuntimeError(f"tar cannot pack the base {name}")
    # Last, so that half an installation is not taken for one.
    bases().write_text(json.dumps(BASES))


def fault_of_a_container() -> str:
    """What goes wrong where a container has what those of the tests have: a published port, a volume in memory, and few rights."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    rights = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges:true", "--user=65532:65532"]
    places = [f"--publish=127.0.0.1:{port}:8000", "--tmpfs=/tmp", f"--volume={TRIAL}:/run/trial"]
    options = [f"--opt={one}" for one in ("type=tmpfs", "device=tmpfs", "o=uid=65532,gid=65532,mode=0700")]
    try:
        end_trial()
        podman("volume", "create", *options, TRIAL, check=True)
        podman("run", "--detach", f"--name={TRIAL}", *rights, *places, WITH_PYTHON, "python", "-m", "http.server", "8000", check=True)
        podman("exec", TRIAL, "true", check=True)
        return "" if answers(port) else f"the published port of a container does not answer within {ANSWER_S} s"
    except subprocess.CalledProcessError as failed:
        said = [line for line in failed.stderr.splitlines() if "level=warning" not in line]
        return f"podman {failed.cmd[1]}: {said[-1] if said else f'exit status {failed.returncode}'}"
    except subprocess.TimeoutExpired as failed:
        return f"podman {failed.cmd[1]} does not end within {failed.timeout} s"
    finally:
        end_trial()


def answers(port: int) -> bool:
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        try:
            # No proxy is asked, whatever the variables say.
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            time.sleep(0.1)
    return False


def end_trial() -> None:
    try:
        podman("rm", "--force", "--ignore", "--time=0", TRIAL)
        podman("volume", "rm", "--force", TRIAL)
    except subprocess.TimeoutExpired:
        print(f"podman does not remove {TRIAL}", file=sys.stderr)


def main() -> None:
    if not missing():
        if not has_bases():
            install()
        # Each time: the folder may have come from another machine.
        outcome().write_text(fault_of_a_container())
    if reason := why_not():
        sys.exit(reason)
    print(FOLDER)


if __name__ == "__main__":
    main()
