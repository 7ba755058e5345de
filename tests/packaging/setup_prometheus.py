#!/usr/bin/env python3
"""Where does the Prometheus come from that the tests ask?

    python3 tests/packaging/setup_prometheus.py       # puts prometheus and promtool into target/prometheus

They are Debian's. They are not installed in the system, because the package would start a service.
"""

import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "target" / "prometheus"
TOOLS = ("prometheus", "promtool")


def tool(name: str) -> str | None:
    """The path of one of the tools, or None if it is neither in the folder nor installed in the system."""
    return shutil.which(name, path=FOLDER) or shutil.which(name)


def install() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=work, check=True)
        subprocess.run(["dpkg", "-x", str(next(work.glob("prometheus_*.deb"))), str(work / "deb")], check=True)
        # Last, so that half an installation is not taken for one.
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        made = work / "made"
        made.mkdir()
        for name in TOOLS:
            shutil.move(work / "deb" / "usr" / "bin" / name, made / name)
        shutil.move(made, FOLDER)


if __name__ == "__main__":
    if not all(tool(name) for name in TOOLS):
        install()
    print(FOLDER)
