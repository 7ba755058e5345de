"""Does `.ci/run` go on where something cannot be fetched, and does it clean up where a step fails?

The script runs in a folder of its own. Programs that would fetch or build anything are replaced.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
REPLACED = ("cargo", "rustc", "rustup", "gcc", "aarch64-linux-gnu-gcc", "chromedriver", "zsh", "fish", "podman", "runc", "iptables", "apt-get", "dpkg")
SETUPS = ("perf_analyzer/setup_perf.py", "packaging/setup_prometheus.py", "packaging/setup_linters.py", "packaging/setup_containers.py")
WORKS = "#!/bin/sh\n"
# Debian's lists are out of date until they are fetched.
STALE = "import pathlib, sys\nsys.exit(not pathlib.Path('lists').exists())\n"
# Says something, and does not end by itself for as long as a test may take.
SLOW = "import os, pathlib, time\nprint('a download has begun', flush=True)\npathlib.Path('process').write_text(str(os.getpid()))\ntime.sleep(100)\n"


@pytest.fixture
def place(tmp_path) -> pathlib.Path:
    """A folder in which all steps of .ci/run pass at once."""
    (tmp_path / ".ci").mkdir()
    shutil.copy2(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for folder in ("bin", "temporary", ".venv/bin", "xtask/src", *{f"tests/{pathlib.Path(one).parent}" for one in SETUPS}):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "xtask" / "src" / "miri.rs").touch()
    for name in REPLACED:
        replace(tmp_path, name, WORKS)
    for one in SETUPS:
        (tmp_path / "tests" / one).touch()
    return tmp_path


def replace(place: pathlib.Path, name: str, script: str) -> None:
    (place / "bin" / name).write_text(script)
    (place / "bin" / name).chmod(0o755)


def run(place: pathlib.Path) -> subprocess.CompletedProcess:
    variables = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(place / "temporary")}
    return subprocess.run(["bash", ".ci/run"], cwd=place, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)


def test_all_steps_pass_and_nothing_is_left(place):
    done = run(place)
    assert done.returncode == 0 and "all good" in done.stdout, done.stdout
    assert "not to be had" not in done.stdout
    assert not list((place / "temporary").iterdir())


@pytest.mark.parametrize("setup", [one for one in SETUPS if "linters" not in one])
def test_debians_lists_are_fetched_where_a_setup_fails(place, setup):
    """The linters are wheels, so they need no lists."""
    replace(place, "apt-get", f'#!/bin/sh\n[ "$1" = update ] && touch {place / "lists"}\n')
    (place / "tests" / setup).write_text(STALE)
    done = run(place)
    assert done.returncode == 0, done.stdout
    assert "not to be had" not in done.stdout, done.stdout


@pytest.mark.parametrize("setup", SETUPS)
def test_a_setup_that_fails_is_reported_and_fails_nothing(place, setup):
    (place / "tests" / setup).write_text("raise SystemExit('there is no network')\n")
    done = run(place)
    assert done.returncode == 0 and "all good" in done.stdout, done.stdout
    assert "there is no network" in done.stdout and "not to be had here" in done.stdout


def test_libraries_that_cannot_be_had_are_reported_and_fail_nothing(place):
    replace(place, "dpkg", "#!/bin/sh\nexit 1\n")
    replace(place, "apt-get", f'#!/bin/sh\necho "$@" >> {place / "asked"}\necho "there is no mirror" >&2\nexit 100\n')
    done = run(place)
    assert done.returncode == 0 and "all good" in done.stdout, done.stdout
    assert "there is no mirror" in done.stdout and "python3-torch python3-sklearn python3-pil are not to be had here" in done.stdout
    assert "--no-install-recommends python3-torch python3-sklearn python3-pil" in (place / "asked").read_text()


def test_an_installation_of_packages_outlives_a_failed_step(place):
    """Half of a package would stop the next installation."""
    replace(place, "dpkg", "#!/bin/sh\nexit 1\n")
    begun, ended, go_on = (place / name for name in ("begun", "ended", "go_on"))
    replace(place, "apt-get", f"#!/bin/sh\ntouch {begun}\nuntil [ -e {go_on} ]; do sleep 0.02; done\ntouch {ended}\n")
    replace(place, "cargo", f'#!/bin/sh\n[ "$1" != fetch ] || {{ until [ -e {begun} ]; do sleep 0.02; done; exit 101; }}\n')
    done = run(place)
    assert done.returncode == 101 and not ended.exists(), done.stdout
    go_on.touch()
    until = time.monotonic() + 10
    while not ended.exists():
        assert time.monotonic() < until, "the installation was ended"
        time.sleep(0.02)


def test_a_failed_step_ends_the_downloads_and_shows_what_they_said(place):
    (place / "tests" / SETUPS[0]).write_text(SLOW)
    replace(place, "cargo", f'#!/bin/sh\n[ "$1" != fetch ] || {{ until [ -s {place / "process"} ]; do sleep 0.02; done; exit 101; }}\n')
    done = run(place)
    assert done.returncode == 101, done.stdout
    assert "a download has begun" in done.stdout
    assert not list((place / "temporary").iterdir())
    until = time.monotonic() + 10
    while runs(int((place / "process").read_text())):
        assert time.monotonic() < until, "the download goes on"
        time.sleep(0.02)


def runs(process: int) -> bool:
    """A process that has ended may wait for somebody to ask for its exit status."""
    try:
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
