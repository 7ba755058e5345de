"""Do the programs in examples/python run, and print what they should?"""

import importlib.util
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from clients import http_call
from PIL import Image
from peers import ROOT

FOLDER = ROOT / "examples" / "python"
PRINTED = {
    "classify_digits.py": r"19\d of 200 digits are right, over (session|region|inline)",
    "classify_picture.py": r"\d, with a probability of (0\.\d\d|1\.00)",
    "encode_texts.py": r"i forgot the password: How do I reset my password\? \(0\.\d\d\)\n"
    r"paying by card: May I pay by credit card\? \(0\.\d\d\)\nmy parcel did not arrive: Where is my parcel\? \(0\.\d\d\)",
    "fan_out.py": r"2 \d 1\.5",
    "frames.py": r"\d+\.\d\d ms for a frame, \d+\.\d\d ms at most; \d+ bytes were copied",
    "loader.py": r"19\d of 200 digits are right, from 2 workers; 0 bytes were copied",
    "make_text_encoder.py": r"\S+/text_encoder is written",
    "table.py": r"6\d of 64 right, 0\.9\d sure\nshares the response's memory: True; \d+ bytes were copied\nfrom a frame of pandas: 6\d of 64 right",
    "video.py": r"60 frames in \d+\.\d{3} s, \d+\.\d\d ms in the middle, \d+\.\d\d ms at most\n\d+ bytes were copied",
    "workers.py": re.escape(str([16 * number + 16 for number in range(8)])),
}
MAKER = FOLDER / "make_text_encoder.py"


@pytest.fixture(scope="module")
def text_models(tmp_path_factory) -> str:
    """The repository that make_text_encoder.py makes."""
    made = tmp_path_factory.mktemp("text") / "models"
    subprocess.run([sys.executable, str(MAKER), str(made)], check=True, stdout=subprocess.DEVNULL)
    return str(made)


@pytest.mark.parametrize("way", ["session", "http"])
@pytest.mark.parametrize("name", sorted(PRINTED))
def test_an_example_runs(launcher, text_models, tmp_path, name, way):
    if name == "loader.py" and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: cargo xtask oracle")
    counts_copies = name in ("frames.py", "video.py") and way == "session"
    # After a request made a thread wait, the server runs its user's requests on private copies for a while. Tests before may have done so.
    start = launcher.fresh if counts_copies else launcher.get
    examples = start("nerite", *([f"--model-repository={text_models}"] if name == "encode_texts.py" else []))
    address = f"unix:{examples.session_socket}" if way == "session" else f"http://{examples.http}"
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])}
    given = [address]
    if name == "classify_picture.py":
        label = draw(tmp_path / "digit.png")
        given = [str(tmp_path / "digit.png"), address]
    elif name == "make_text_encoder.py":
        given = [str(tmp_path)]
    elif name == "video.py":
        given = [str(tmp_path / "latency.png"), address]
    copied_before = copied_bytes(examples)
    ended = subprocess.run(
        [sys.executable, str(FOLDER / name), *given],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        # Apart, because libraries warn there.
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    if name == "loader.py" and way == "http":
        assert ended.returncode == 1 and "only the buffers of a session" in ended.stderr, ended.stderr
        return
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.fullmatch(PRINTED[name], ended.stdout.strip()), ended.stdout + ended.stderr
    if name == "classify_picture.py":
        assert ended.stdout.startswith(label)
    if name in ("frames.py", "table.py", "video.py") and way == "session":
        assert re.search(r"(; |\n)0 bytes were copied", ended.stdout)
    if counts_copies:
        assert copied_bytes(examples) == copied_before, "the server copied nothing either"
    if name == "video.py":
        # Nothing but the pace makes it so long: the last frame is due 59 sixtieths of a second after the first.
        assert float(re.search(r"in (\S+) s", ended.stdout)[1]) >= 59 / 60 - 0.001
        assert points_in(tmp_path / "latency.png") == 60


def copied_bytes(server) -> dict[str, int]:
    """The bytes of tensors that the server has copied, for each reason but one: an identity model has to write its output."""
    page = http_call(server.process.metrics, "GET", "/metrics").ok().body.decode()
    found = re.findall(r'^nerite_copied_bytes_total\{reason="(?!model")(\w+)"\} (\d+)$', page, re.M)
    return {reason: int(count) for reason, count in found}


def points_in(picture) -> int:
    """Points of a plot's first colour, a blue, that stand side by side: columns that begin to be blue."""
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    is_blue = (pixels[:, :, 2] - pixels[:, :, 0] > 60).any(axis=0)
    return int((is_blue[1:] & ~is_blue[:-1]).sum())


def draw(path) -> str:
    """Writes a digit as a picture; its name."""
    samples = np.fromfile(ROOT / "examples" / "digits" / "samples.bin", np.uint8)[4:].reshape(-1, 65)
    picture = (samples[0, :64].reshape(8, 8).astype(np.float32) / 16 * 255).astype(np.uint8)
    Image.fromarray(picture).resize((64, 64), Image.Resampling.NEAREST).save(path)
    return str(samples[0, 64])


def test_each_example_is_run():
    assert sorted(PRINTED) == sorted(one.name for one in FOLDER.glob("*.py"))
