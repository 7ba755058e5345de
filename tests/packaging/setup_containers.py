#!/usr/bin/env python3
"""Where do the base images come from on which the tests build the images of the Dockerfile?

    python3 tests/packaging/setup_containers.py       # makes them in target/containers, or does nothing if they are there

No registry of images is asked. Each base is put together from Debian's packages and stands in for the image of its name, in a storage of images that
belongs to the tests: the program `podman` sees no other, and those of the user see nothing of this one. It needs podman, apt-get and root.

The base of the server has the same packages as the one that it stands in for. The one with a Python has Debian's, which is older.
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
    "docker.io/library/python:3.12-slim-bookworm": ("dash", "coreutils", "python3", "python3-pip"),
    "gcr.io/distroless/cc-debian12:nonroot": (
        "base-files", "libc6", "libgcc-s1", "libgomp1", "libssl3", "libstdc++6", "media-types", "netbase", "tzdata",
    ),
}  # fmt: skip
CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")


def podman() -> list[str]:
    """The command, with the storage of the tests. Control groups and logs need no service of the system."""
    return [
        "podman", f"--root={FOLDER / 'storage'}", f"--runroot={FOLDER / 'run'}", f"--tmpdir={FOLDER / 'tmp'}",
        "--cgroup-manager=cgroupfs", "--events-backend=file",
    ]  # fmt: skip


def stamp() -> pathlib.Path:
    return FOLDER / "stamp"


def is_there() -> bool:
    return shutil.which("podman") is not None and stamp().exists() and stamp().read_text() == json.dumps(BASES)


def unpack(packages: tuple[str, ...], work: pathlib.Path) -> pathlib.Path:
    """The files of the packages and of all that they depend on, as if nothing was installed before."""
    archives, root = work / "archives", work / "root"
    (archives / "partial").mkdir(parents=True)
    root.mkdir()
    command = ["apt-get", "install", "--download-only", "--no-install-recommends", "-y", "-qq"]
    options = ["-o", "Dir::State::status=/dev/null", "-o", f"Dir::Cache::archives={archives}"]
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
            subprocess.run([*podman(), "import", "--quiet", "-", name], stdin=tree.stdout, check=True, stdout=subprocess.DEVNULL)
            if tree.wait() != 0:
                raise RuntimeError(f"tar cannot pack the base {name}")
    # Last, so that half an installation is not taken for one.
    stamp().write_text(json.dumps(BASES))


if __name__ == "__main__":
    missing = [tool for tool in ("podman", "apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        sys.exit(f"the images need {', '.join(missing) or 'root'}")
    if not is_there():
        install()
    print(FOLDER)
