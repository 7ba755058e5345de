#!/usr/bin/env python3
"""Where do the base images come from on which the tests build the images of the Dockerfile?

    python3 tests/packaging/setup_containers.py       # makes them in target/containers, or does nothing if they are there

No registry of images is asked. Each base is put together from Debian's packages and stands in for the image of its name. They are in a storage of their
own, which the user's podman does not see. It needs apt-get, root, and Debian's packages podman, runc, netavark and iptables.

The base of the server has the packages of the image that it stands in for. The one with a Python has Debian's Python, which is older.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "target" / "containers"
# The name in the Dockerfile, and the packages. What they depend on is added.
BASES = {
    "docker.io/library/debian:12-slim": ("dash", "coreutils", "tar", "gzip"),
    "docker.io/library/python:3.12-slim-bookworm": ("dash", "coreutils", "libstdc++6", "python3", "python3-pip"),
    "gcr.io/distroless/cc-debian12:nonroot": (
        "base-files", "libc6", "libgcc-s1", "libgomp1", "libssl3", "libstdc++6", "media-types", "netbase", "tzdata",
    ),
}  # fmt: skip
CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
LIMIT = 4096
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


def stamp() -> pathlib.Path:
    return FOLDER / "stamp"


def is_there() -> bool:
    return not missing() and stamp().exists() and stamp().read_text() == json.dumps(BASES)


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
    stamp().unlink(missing_ok=True)
    for name, packages in BASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            root = unpack(packages, pathlib.Path(scratch))
            tree = subprocess.Popen(["tar", "-c", "-C", root, "."], stdout=subprocess.PIPE)
            subprocess.run(["podman", "import", "--quiet", "-", name], stdin=tree.stdout, check=True, stdout=subprocess.DEVNULL, env=environment())
            if tree.wait() != 0:
                raise RuntimeError(f"tar cannot pack the base {name}")
    # Last, so that half an installation is not taken for one.
    stamp().write_text(json.dumps(BASES))


if __name__ == "__main__":
    if missing():
        sys.exit(f"the images need {', '.join(missing())}")
    if not is_there():
        install()
    print(FOLDER)
