"""Do the examples of the README run?"""

import pathlib
import re
import subprocess
import sys

import pytest
from peers import ROOT

README = (ROOT / "python" / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_an_example_runs(launcher, tmp_path: pathlib.Path, index: int):
    server = launcher.get("nerite")
    code = EXAMPLES[index].replace("localhost:8000", server.http).replace("localhost:8001", server.grpc)
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout
    assert "Error" not in ended.stdout


def test_there_are_five():
    assert len(EXAMPLES) == 5
