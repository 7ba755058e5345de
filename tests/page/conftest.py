"""Which server shows the page, and who looks at it?"""

import os
import pathlib
import shutil
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "hostile"))

import servers  # noqa: E402
from browsers import opened  # noqa: E402
from hands import Hands  # noqa: E402

EXAMPLES = servers.ROOT / "examples" / "models"


@pytest.fixture(scope="session")
def browser():
    with opened() as driver:
        yield driver


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> pathlib.Path:
    """Where screenshots go, to be looked at: NERITE_PAGE_PICTURES, or a folder that pytest keeps for a while."""
    place = os.environ.get("NERITE_PAGE_PICTURES")
    folder = pathlib.Path(place) if place else tmp_path_factory.mktemp("page")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def shown(launcher, tmp_path_factory):
    """The examples that users get, some models of the catalogue beside them, and leave to load and unload."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("needs a nerite of its own")
    repository = tmp_path_factory.mktemp("shown")
    for model in ("digits", "simple", "identity_fp32"):
        shutil.copytree(EXAMPLES / model, repository / model)
    for model in ("batched_bytes", "chain", "repeat_int32"):
        shutil.copytree(launcher.catalogue / model, repository / model)
    socket = tmp_path_factory.mktemp("socket") / "session.sock"
    flags = ["--model-control-mode=explicit", "--load-model=*", f"--session-socket={socket}", servers.onnxruntime_flag()]
    with launcher.running("page", *flags, repository=repository) as server:
        server.session = socket
        yield server


@pytest.fixture(scope="session")
def namespaced(launcher, tmp_path_factory):
    """Two repositories with a model `same` each, of another datatype each, and one model that only the first has."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("needs a nerite of its own")
    repositories = [tmp_path_factory.mktemp("namespaced") / name for name in ("first", "second")]
    for repository, datatype in zip(repositories, ("TYPE_FP32", "TYPE_INT32"), strict=True):
        config = f'backend: "identity" input {{ name: "IN" data_type: {datatype} dims: 2 }} output {{ name: "OUT" data_type: {datatype} dims: 2 }}'
        for model in ("same", "only_first")[: 2 if repository.name == "first" else 1]:
            (repository / model / "1").mkdir(parents=True)
            (repository / model / "config.pbtxt").write_text(config)
    first, second = repositories
    flags = ["--model-namespacing=true", f"--model-repository={second}", "--model-control-mode=explicit", "--load-model=same", "--load-model=only_first"]
    with launcher.running("page_namespaced", *flags, repository=first) as server:
        server.repositories = repositories
        yield server


@pytest.fixture
def page(browser, shown, pictures):
    """The page at its first view, in a browser of usual size. Whatever the browser complains about fails the test."""
    hands = Hands(browser, shown, pictures)
    hands.resize(1280, 900)
    hands.open("/")
    yield hands
    assert hands.foreign_resources() == []
    assert hands.complaints() == []
