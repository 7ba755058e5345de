"""Do the programs in examples/python run, and print what they should?"""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from peers import ROOT

FOLDER = ROOT / "examples" / "python"
PRINTED = {
    "classify_digits.py": r"19\d of 200 digits are right, over (session|region|inline)",
    "classify_picture.py": r"\d, with a probability of (0\.\d\d|1\.00)",
    "fan_out.py": r"2 \d 1\.5",
    "frames.py": r"\d+\.\d\d ms for a frame, \d+\.\d\d ms at most; \d+ bytes were copied",
    "workers.py": re.escape(str([16 * number + 16 for number in range(8)])),
}


@pytest.mark.parametrize("way", ["session", "http"])
@pytest.mark.parametrize("name", sorted(PRINTED))
def test_an_example_runs(launcher, tmp_path, name, way):
    examples = launcher.get("nerite")
    address = f"unix:{examples.session_socket}" if way == "session" else f"http://{examples.http}"
    given = [address]
    if name == "classify_picture.py":
        image = pytest.importorskip("PIL.Image")
        samples = np.fromfile(ROOT / "examples" / "digits" / "samples.bin", np.uint8)[4:].reshape(-1, 65)
        picture = (samples[0, :64].reshape(8, 8).astype(np.float32) / 16 * 255).astype(np.uint8)
        image.fromarray(picture).resize((64, 64), image.Resampling.NEAREST).save(tmp_path / "digit.png")
        given = [str(tmp_path / "digit.png"), address]
    ended = subprocess.run(
        [sys.executable, str(FOLDER / name), *given],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout
    assert re.fullmatch(PRINTED[name], ended.stdout.strip()), ended.stdout
    if name == "classify_picture.py":
        assert ended.stdout.startswith(str(samples[0, 64]))
    if name == "frames.py" and way == "session":
        assert "; 0 bytes were copied" in ended.stdout


def test_each_example_is_run():
    assert sorted(PRINTED) == sorted(one.name for one in FOLDER.glob("*.py"))
