"""Which servers do the tests of the Python package talk to?

    .venv/bin/python -m pytest python/tests        # target/debug/nerite (or NERITE_BIN), and Triton if it is installed

The real Triton 2.51 and PyTorch take part when they are installed (``cargo xtask oracle``). Without either server the tests that need
none still run.
"""

import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from peers import ROOT, Found, Launcher, shared_objects  # noqa: E402

sys.path.insert(0, str(ROOT / "tests"))

import setup_oracle  # noqa: E402
import suites  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    suites.add_option(parser)


def pytest_collection_modifyitems(config: pytest.Config, items: "list[pytest.Item]") -> None:
    suites.select(config, items)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--suite") in (None, "oracle"):
        setup_oracle.add_torch()
    # Whoever started the tests in the background may have had these ignored. Servers and clients would inherit that.
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    import make_models

    made = tmp_path_factory.mktemp("models") / "generated"
    make_models.make_conformance(made)
    return made


@pytest.fixture(scope="session")
def launcher(repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory):
    made = Launcher(repository, tmp_path_factory.mktemp("servers"))
    with made.ends:
        yield made


@pytest.fixture(params=["nerite", "triton"])
def server(request: pytest.FixtureRequest, launcher: Launcher) -> Found:
    """Each server there is."""
    return launcher.get(request.param)


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def nothing_left():
    """Fails a test that leaves an object in /dev/shm."""
    before = shared_objects()
    yield
    assert shared_objects() <= before
