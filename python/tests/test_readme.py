"""Do the examples of the README run?"""

import os
import pathlib
import re
import subprocess
import sys

import peers
import pytest
from peers import ROOT

README = (ROOT / "python" / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_an_example_runs(launcher, tmp_path: pathlib.Path, index: int):
    server = launcher.get("nerite")
    code = EXAMPLES[index].replace("localhost:8000", server.http).replace("localhost:8001", server.grpc)
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "NERITE_BIN": str(peers.servers.nerite_binary())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout
    assert "Error" not in ended.stdout


def test_the_first_example_of_the_project_runs():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "NERITE_BIN": str(peers.servers.nerite_binary()), "PYTHONPATH": str(ROOT / "python")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout
    # The probabilities of ten digits.
    assert len(re.findall(r"0\.\d+", ended.stdout)) == 10, ended.stdout


def test_the_page_has_seven_examples():
    assert len(EXAMPLES) == 7
