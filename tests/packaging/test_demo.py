"""Does `nerite demo` show what a call from Python costs beside tritonclient's ways?"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TIME = r"\d[\d.]* [µm]s"


def demo(program: pathlib.Path, path: str, **more: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NERITE_", "PYTHON"))}
    command = [program, "demo", "--exit", "--examples", ROOT / "examples"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**clean, "PATH": path, **more})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_ways_are_measured_where_both_clients_are(program):
    said = demo(program, f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for way in ("tritonclient.http, inline", "tritonclient.http, shared memory", "tritonclient.grpc, inline", "tritonclient.grpc, shared memory", "nerite, one call"):
        assert re.search(rf"^{re.escape(way)} +{TIME} +{TIME} +{TIME}$", said, re.MULTILINE), said
    check_pipeline(said)


def check_pipeline(said: str) -> None:
    """Its labels are right for the digits that the net alone reads rightly, and the bitmaps are not copied."""
    (alone,) = re.findall(r"^(\d+) of 200 unseen digits read rightly, from one shared memory region into another", said, re.MULTILINE)
    (piped,) = re.findall(r"^(\d+) of 200 read rightly from bitmaps of 32 by 32", said, re.MULTILINE)
    assert int(piped) == int(alone) > 190, said
    ((sent, copied),) = re.findall(r"read the client's (\d+) bytes where they lie; the models passed on (\d+) bytes by copies", said)
    assert int(sent) == 200 * 32 * 32, said
    # Small tensors go to and from a model's process by copies: ten probabilities of each digit, and 64 numbers of each in the last batch of eight.
    assert int(copied) <= 4 * (200 * 10 + 8 * 64), said


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        (None, "there is no python3 on the path"),
        ("exit 1", "python3 has no numpy"),
        # One that has numpy, and no client.
        ('exec {python} -c "import sys; [sys.modules.__setitem__(one, None) for one in (\'tritonclient\', \'nerite\')]; sys.argv = [\'-c\', *sys.argv[3:]]; '
         'exec(open(\'{script}\').read())" "$@"', "python3 has no tritonclient"),
    ],
)  # fmt: skip
def test_one_line_says_why_it_is_left_out(program, tmp_path, python, reason):
    if python:
        script = ROOT / "crates" / "server" / "src" / "demo" / "beside.py"
        (tmp_path / "python3").write_text("#!/bin/sh\n" + python.format(python=sys.executable, script=script) + "\n")
        (tmp_path / "python3").chmod(0o755)
    said = demo(program, str(tmp_path))
    (line,) = [line for line in said.splitlines() if "beside tritonclient's" in line]
    assert reason in line, line
