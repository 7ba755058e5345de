"""Which servers do the conformance tests talk to?

    pytest tests/conformance                       # starts target/debug/nerite (or NERITE_BIN)
    pytest tests/conformance --oracle              # the same tests against the real Triton 2.51
    pytest tests --suite gate                      # one suite of tests/suites.py; all without the option
    pytest tests/conformance --http-url=… --grpc-url=… --metrics-url=…   # a server that is already there

A server that is already there must serve tests/models/generated/conformance; tests that need a server with other
flags are then skipped.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence

import grpc
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / part) for part in ("", "conformance", "models", "onnx_models")]

import clients  # noqa: E402
import lacks  # noqa: E402
import make_models  # noqa: E402
import servers  # noqa: E402
import setup_oracle  # noqa: E402
import suites  # noqa: E402
import triton  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nerite")
    group.addoption("--oracle", action="store_true", help="test the real Triton 2.51 instead of nerite")
    suites.add_option(group)
    for port in ("http", "grpc", "metrics"):
        group.addoption(f"--{port}-url", help=f"host:port of a running server's {port} port")


def pytest_configure(config: pytest.Config) -> None:
    # Servers take `python3` from the path for Python models. The interpreter of the tests has numpy, the machine's may not have it.
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Whoever started the tests in the background may have had these ignored. Servers and clients would inherit that.
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    suites.check_rows()
    if config.getoption("--suite") in (None, "oracle"):
        setup_oracle.add_torch()
    config.addinivalue_line(
        "markers", "triton_differs(reason, run=True): Triton 2.51 answers otherwise; run=False if it does not survive"
    )


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> "bool | None":
    return suites.is_left_out(collection_path, config) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    suites.select(config, items)
    if not config.getoption("--oracle"):
        for item in items:
            if reason := lacks.lacking(item.nodeid):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        return
    for item in items:
        marker = item.get_closest_marker("triton_differs")
        if marker is not None:
            # Strict: a difference that is none is an error in our documentation.
            item.add_marker(
                pytest.mark.xfail(reason=marker.args[0], run=marker.kwargs.get("run", True), strict=True)
            )


class Launcher:
    """Starts servers of the flavour under test, each with its own flags and, if asked, its own repository."""

    def __init__(self, config: pytest.Config, scratch: pathlib.Path):
        self.oracle = config.getoption("--oracle")
        self.urls = [config.getoption(f"--{port}-url") for port in ("http", "grpc", "metrics")]
        self.scratch = scratch
        self.generated = scratch / "generated"
        make_models.make(self.generated, ["conformance"])
        self.catalogue = self.generated / "conformance"
        if self.oracle:
            self.catalogue = scratch / "oracle"
            triton.make_repository(self.catalogue, self.generated / "conformance")

    @contextlib.contextmanager
    def running(self, name: str, *flags: str, repository: pathlib.Path | None = None, before: Sequence[str] = ()):
        """A server as long as the `with` block lasts. `before` is a command that runs the server's."""
        if any(self.urls):
            pytest.skip("needs a server of its own")
        repository = repository or self.catalogue
        if self.oracle:
            command, environment = triton.command(repository, self.scratch)
        else:
            command, environment = servers.nerite_command(repository)
        command = [*before, *command]
        server = self.start(command, environment, list(flags), self.scratch / f"{name}.log", repository)
        try:
            yield server
        finally:
            servers.stop(server)

    def start(self, command, environment, flags, log: pathlib.Path, repository: pathlib.Path) -> servers.Server:
        """A second try where the machine was so busy that 2.51 gave up on its Python processes."""
        try:
            return servers.start(command, environment, flags, log, oracle=self.oracle, repository=repository)
        except RuntimeError:
            if not self.oracle:
                raise
        return servers.start(command, environment, flags, log, oracle=self.oracle, repository=repository)

    def copy_of(self, name: str, *models: str) -> pathlib.Path:
        """A repository of its own with some models of the catalogue, which a test may change."""
        repository = self.scratch / name
        if repository.exists():
            # A fixture that is made a second time, where tests run in another order.
            repository = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}_", dir=self.scratch))
            repository.chmod(0o755)
        else:
            repository.mkdir()
        for model in models:
            shutil.copytree(self.catalogue / model, repository / model)
        return repository


@pytest.fixture(scope="session")
def launcher(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(pytestconfig, tmp_path_factory.mktemp("servers"))


@pytest.fixture(scope="session")
def server(launcher: Launcher):
    """The server with the whole catalogue, shared by all tests that leave it as they found it."""
    if any(launcher.urls):
        http, grpc_url, metrics = launcher.urls
        yield servers.Server(http or "", grpc_url or "", metrics or "", oracle=launcher.oracle)
        return
    # Models of a runtime that is not installed here must not keep the others from being tested.
    with launcher.running("catalogue", "--exit-on-error=false") as found:
        yield found


@pytest.fixture(scope="session")
def onnx_server(launcher: Launcher):
    """A server with the ONNX models of every datatype, on the ONNX Runtime that the tests compare with."""
    if launcher.oracle:
        pytest.skip("2.51 here has no ONNX backend")
    make_models.make(launcher.generated, ["onnx"])
    with launcher.running("onnx", servers.onnxruntime_flag(), repository=launcher.generated / "onnx") as found:
        yield found


@pytest.fixture(scope="session")
def explicit(launcher: Launcher):
    """A server in explicit mode with one model loaded, over a repository that tests may add to."""
    repository = launcher.copy_of("explicit", "identity_fp32", "identity_int32", "versioned", "simple", "chain")
    with launcher.running(
        "explicit", "--model-control-mode=explicit", "--load-model=identity_fp32", repository=repository
    ) as found:
        yield found


@pytest.fixture(scope="session")
def stub(server):
    """The raw gRPC calls."""
    with clients.grpc_channel(server.grpc) as channel:
        yield clients.service_stub(channel)


@pytest.fixture(scope="session", params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server):
    """The server by each of its protocols, asked in the same words."""
    with clients.open_client(request.param, server) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def explicit_client(request: pytest.FixtureRequest, explicit):
    with clients.open_client(request.param, explicit) as found:
        yield found


@pytest.fixture
def needs_model(server):
    """Skips a test when the server came up without the model it needs."""
    def need(name: str) -> None:
        with contextlib.closing(grpc.insecure_channel(server.grpc)) as channel:
            request = clients.pb.ModelReadyRequest(name=name)
            if not clients.service_stub(channel).ModelReady(request).ready:
                pytest.skip(f"the server serves no model '{name}'")

    return need
