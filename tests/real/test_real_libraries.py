"""Do models with PyTorch, scikit-learn and pillow run as they do without a server, and environments that venv-pack packed?

PyTorch comes from `cargo xtask oracle`.
"""

import importlib.util
import io
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from clients import Given, RequestedOutput, open_client, text
from python_setup import PATIENT, strings
from servers import ROOT

REQUIREMENTS = ROOT / "tests" / "requirements.txt"
HERE = pathlib.Path(__file__).resolve().parent
TENSOR = 'name: "{}" data_type: TYPE_{} dims: [ {} ]'


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> pathlib.Path:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: cargo xtask oracle")
    folder = tmp_path_factory.mktemp("trained")
    subprocess.run([sys.executable, HERE / "train.py", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def samples(trained):
    with np.load(trained / "samples.npz") as found:
        return dict(found)


@pytest.fixture(scope="session", autouse=True)
def own_server(request):
    launcher = request.getfixturevalue("launcher")
    if launcher.oracle or any(launcher.urls):
        pytest.skip("needs a nerite of its own")


def put(repository: pathlib.Path, name: str, inputs: str, outputs: list[str], *files: pathlib.Path, more: str = "") -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    shutil.copy(HERE / "models" / f"{name}.py", version / "model.py")
    for file in files:
        shutil.copy(file, version)
    blocks = f"input [ {{ {inputs} }} ]\n" + "".join(f"output [ {{ {one} }} ]\n" for one in outputs)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\nmax_batch_size: 512\n{blocks}{more}')


IMAGE, PICTURE = TENSOR.format("image", "FP32", 64), TENSOR.format("file", "STRING", 1)
FROM = TENSOR.format("from", "STRING", 1)


@pytest.fixture(scope="module")
def server(launcher, trained, tmp_path_factory):
    repository = tmp_path_factory.mktemp("real")
    put(repository, "net", IMAGE, [TENSOR.format("probabilities", "FP32", 10), TENSOR.format("facts", "BOOL", 2)], trained / "net.pt")
    put(repository, "pipeline", IMAGE, [TENSOR.format("digit", "INT64", 1)], trained / "pipeline.joblib")
    put(repository, "picture", PICTURE, [IMAGE, FROM])
    (repository / "read" / "1").mkdir(parents=True)
    (repository / "read" / "config.pbtxt").write_text(READ)
    with launcher.running("real", PATIENT, repository=repository) as found:
        yield found


# A picture's file goes in, the net's answer comes out.
READ = """
name: "read"
platform: "ensemble"
max_batch_size: 512
input [ { name: "file" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "probabilities" data_type: TYPE_FP32 dims: [ 10 ] } ]
ensemble_scheduling { step [
  { model_name: "picture" model_version: -1 input_map { key: "file" value: "file" } output_map { key: "image" value: "image" } },
  { model_name: "net" model_version: -1 input_map { key: "image" value: "image" } output_map { key: "probabilities" value: "probabilities" } }
] }
"""


def images(samples) -> Given:
    return Given("image", "FP32", list(samples["images"].shape), samples["images"].tobytes())


def files(samples, count: int) -> Given:
    """The first digits as pictures of 64 by 64."""
    content = []
    for pixels in samples["images"][:count]:
        out = io.BytesIO()
        grey = (pixels.reshape(8, 8) * (255 / 16)).round().astype(np.uint8)
        Image.fromarray(grey).resize((64, 64), Image.Resampling.NEAREST).save(out, "png")
        content.append(out.getvalue())
    return text("file", content, [count, 1])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_net_of_torch_answers_as_without_a_server(server, samples, protocol):
    with open_client(protocol, server) as client:
        reply = client.infer("net", [images(samples)], [RequestedOutput("probabilities"), RequestedOutput("facts")])
    probabilities = np.frombuffer(reply.outputs["probabilities"].raw, np.float32).reshape(-1, 10)
    np.testing.assert_allclose(probabilities, samples["probabilities"], rtol=1e-4, atol=1e-6)
    assert (probabilities.argmax(-1) == samples["digits"]).mean() > 0.85
    # Tensors of FP32 came, and what the net wrote was not copied by DLPack.
    assert np.frombuffer(reply.outputs["facts"].raw, bool).all()


def test_a_pipeline_of_scikit_learn_answers_as_without_a_server(server, samples):
    with open_client("grpc", server) as client:
        reply = client.infer("pipeline", [images(samples)], [RequestedOutput("digit")])
    digits = np.frombuffer(reply.outputs["digit"].raw, np.int64)
    assert (digits == samples["classes"]).all() and (digits == samples["digits"]).mean() > 0.9


def test_a_picture_is_prepared_by_pillow_and_read_by_torch(server, samples):
    with open_client("http", server) as client:
        reply = client.infer("read", [files(samples, 50)], [RequestedOutput("probabilities")])
    probabilities = np.frombuffer(reply.outputs["probabilities"].raw, np.float32).reshape(-1, 10)
    # Rounded to 256 greys on the way.
    assert (probabilities.argmax(-1) == samples["probabilities"][:50].argmax(-1)).mean() > 0.95


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> pathlib.Path:
    """A virtual environment with numpy and pillow, packed by venv-pack."""
    folder = tmp_path_factory.mktemp("packed")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    pins = [line for line in REQUIREMENTS.read_text().splitlines() if line.startswith(("numpy=", "pillow="))]
    subprocess.run([folder / "env" / "bin" / "python", "-m", "pip", "install", "-q", *pins], check=True)
    subprocess.run([sys.executable, "-m", "venv_pack", "-q", "-p", folder / "env", "-o", folder / "env.tar.gz"], check=True)
    shutil.rmtree(folder / "env")
    return folder / "env.tar.gz"


def test_an_environment_of_venv_pack_is_where_the_model_runs(launcher, environment, tmp_path, monkeypatch):
    (tmp_path / "unpacked").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "unpacked"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    repository = tmp_path / "models"
    more = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}\n'
    put(repository, "picture", PICTURE, [IMAGE, FROM], more=more)
    white = {"images": np.full((1, 64), 16, np.float32)}
    # No `python3` is on the path.
    monkeypatch.setenv("PATH", "/nonexistent")
    with launcher.running("real_env", PATIENT, repository=repository) as found:
        (unpacked,) = (tmp_path / "unpacked").iterdir()
        with open_client("http", found) as client:
            reply = client.infer("picture", [files(white, 1)], [RequestedOutput("image"), RequestedOutput("from")])
        assert (np.frombuffer(reply.outputs["image"].raw, np.float32) == 16).all()
        (place,) = strings(reply.outputs["from"].raw)
        assert place.startswith(f"{unpacked}/lib/python3") and place.endswith(f" {unpacked}")
    assert list((tmp_path / "unpacked").iterdir()) == []
