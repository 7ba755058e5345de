"""Does `nerite demo` show what a call from Python costs beside tritonclient's ways?"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TIME = r"\d[\d.]* [µm]s"


def environment(path: str, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NERITE_", "PYTHON"))}
    return {**clean, "PATH": path, **more}


def demo(program: pathlib.Path, path: str) -> str:
    command = [program, "demo", "--exit", "--examples", ROOT / "examples"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment(path))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_ways_are_measured_where_both_clients_are(program):
    said = demo(program, f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for way in ("tritonclient.http, inline", "tritonclient.http, shared memory", "tritonclient.grpc, inline", "tritonclient.grpc, shared memory", "nerite, one call"):
        assert re.search(rf"^{re.escape(way)} +{TIME} +{TIME} +{TIME}$", said, re.MULTILINE), said
    check_pipeline(said)
    (rows,) = re.findall(r"^16 clients at once, .* weights:\n\d+ a second in batches of (\d+\.\d); one by one \d+ a second\.$", said, re.MULTILINE)
    # A count of the server's statistics. More than 16 cannot wait at once.
    assert 2.0 <= float(rows) <= 16.0, said
    check_table(said)
    assert "Or open http://localhost:8002/ in a browser" in said


def test_the_page_for_browsers_is_named_only_if_the_server_has_it(program, tmp_path):
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    for switch, has_page in (("true", True), ("false", False)):
        command = [program, "demo", "--examples", ROOT / "examples"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(str(tmp_path), NERITE_UI=switch))
        said = ""
        try:
            for line in process.stdout:
                said += line
                if line.startswith("The server stays until Ctrl-C."):
                    break
        finally:
            process.terminate()
            process.communicate()
        (metrics,) = re.findall(r"^  curl (127\.0\.0\.1:\d+)/metrics$", said, re.MULTILINE)
        assert (f"Or open http://{metrics}/ in a browser" in said) == has_page, said


def check_table(said: str) -> None:
    """Each size is measured in four ways. With shared memory the server copies a tensor once, in the model. The largest two may lack room."""
    rows = re.findall(rf"^ *\d+ (?:B|KiB|MiB) │ +{TIME} \(\d\) +{TIME} \((\d)\) │ +{TIME} \(\d\) +{TIME} \((\d)\)$", said, re.MULTILINE)
    assert rows[:6] == 6 * [("1", "1")], said


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
