"""Does a program get the lines of the log that it asks for by TRITONSERVER_ServerOptionsSetLogCallback, and does nobody else?

Triton 2.51 does not have the function. The form of its callback is that of the package `tritonserver` 2.73.
"""

import os
import subprocess

import pytest
from servers import ROOT, nerite_binary
from test_in_process import FLAGS, own_library

PROGRAM = ROOT / "tests" / "programs" / "log_callback.c"


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory) -> subprocess.CompletedProcess:
    if request.config.getoption("--oracle"):
        pytest.skip("Triton 2.51 does not have the function")
    folder, library = tmp_path_factory.mktemp("log_callback"), own_library()
    (folder / "models").mkdir()
    path = folder / "log_callback"
    link = [f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
    subprocess.run(["cc", *FLAGS, str(PROGRAM), "-o", str(path), *link], check=True)
    environment = os.environ | {"NERITE_PROGRAM": str(nerite_binary())}
    done = subprocess.run([str(path), str(folder / "models")], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_options_that_are_none_are_refused(ran):
    assert "without options: Invalid argument" in ran.stdout.splitlines()


def test_the_callback_gets_lines_before_there_is_a_server(ran):
    lines = ran.stdout.splitlines()
    assert [line for line in lines if line.startswith("early: ")] == [f"early: {level} program.c:42 now before the server" for level in (0, 1, 2)]
    assert "enabled: 1 0" in lines


def test_the_callback_gets_each_line_of_the_server_and_of_the_program_as_it_is(ran):
    lines = ran.stdout.splitlines()
    served = [line for line in lines if line.startswith("served: ")]
    assert any(" program.c:42 " not in line for line in served), "no line of the server's own"
    # Without escapes, and without a count in the place of lines that repeat.
    assert ran.stdout.count('served: 3 program.c:42 now verbose "as it is"\nin two lines\n') == 1
    assert served.count("served: 1 program.c:42 now repeated") == 20
    assert "calls: many" in lines and "nobody listens" not in ran.stdout


def test_a_callback_may_remove_itself_and_log(ran):
    assert [line for line in ran.stdout.splitlines() if line.startswith("once: ")] == ["once: the last one"]
    own, others = [], []
    for line in ran.stderr.splitlines():
        (own if "logged by the callback" in line else others).append(line)
    assert own, "what the callback logs is lost"
    # From then on the log is where it is without a callback, and nothing of before was written there.
    assert any("after the last one" in line for line in others)
    assert not any("repeated" in line or "the last one" in line and "after" not in line for line in others), others
