"""Which server does a client talk to, if this user runs several?"""

import os
import pathlib
import shutil
import stat
import tempfile

import pytest
import servers
from peers import ROOT
from tritonclient.utils import InferenceServerException

import nerite


class Started:
    """A server at the default place of its session sockets, with one model."""

    def __init__(self, folder: pathlib.Path, model: str, *flags: str):
        folder.mkdir()
        shutil.copytree(ROOT / "examples" / "models" / model, folder / "models" / model)
        command, environment = servers.nerite_command(folder / "models")
        self._server = servers.start(command, environment, list(flags), folder / "log")
        self.http, self.grpc = self._server.http, self._server.grpc
        self.port = self.http.rsplit(":", 1)[1]

    def kill(self) -> None:
        self._server.process.kill()
        self._server.process.wait()

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *exc: object) -> None:
        servers.stop(self._server)


@pytest.fixture
def place(monkeypatch):
    """The default place of session sockets. Its path is short, because a socket's may have 107 bytes."""
    monkeypatch.delenv("NERITE_SESSION_SOCKET", raising=False)
    with tempfile.TemporaryDirectory(prefix="n") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield pathlib.Path(folder) / "nerite"


@pytest.fixture
def both(place, tmp_path):
    """The first server has the model `simple`, the second `identity_fp32`."""
    with Started(tmp_path / "first", "simple") as first, Started(tmp_path / "second", "identity_fp32") as second:
        yield first, second


def test_each_server_has_a_socket_and_the_first_has_the_common_one(both, place):
    first, second = both
    sockets = {f"session-{first.port}.sock", f"session-{second.port}.sock", "session.sock"}
    assert {path.name for path in place.iterdir()} == sockets
    for path in place.iterdir():
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    with nerite.connect() as made:
        assert (made.transport, made.model("simple").name) == ("session", "simple")
        with pytest.raises(InferenceServerException) as caught:
            made.model("identity_fp32")
    where = place / "session.sock"
    assert str(caught.value).endswith(f"Request for unknown model: 'identity_fp32' is not found (the server asked is at {where})")
    for server, model in ((first, "simple"), (second, "identity_fp32")):
        with nerite.connect(server.http) as made:
            assert (made.transport, made.model(model).name) == ("session", model)
            assert str(place / f"session-{server.port}.sock") in repr(made)


def test_an_address_with_a_scheme_is_spoken_to_as_it_says(both):
    for server, model in zip(both, ("simple", "identity_fp32")):
        with nerite.connect(f"http://{server.http}") as made:
            assert (made.transport, made.model(model).name) == ("lease", model)
            with pytest.raises(InferenceServerException, match=f"unknown model: 'misspelt' .*the server asked is at http://{server.http}"):
                made.model("misspelt")
    first, second = both
    with nerite.connect(f"grpc://{first.grpc}") as made:
        assert (made.transport, made.model("simple").name) == ("lease", "simple")
    # Its port of gRPC does not say where its socket is.
    with nerite.connect(f"grpc://{second.grpc}") as made:
        assert made.transport == "region"
        assert made.model("identity_fp32")([1.5]).OUTPUT0.tolist() == [1.5]


def test_without_a_scheme_http_is_spoken_where_there_are_no_sessions(both, tmp_path):
    with Started(tmp_path / "third", "simple", "--session-socket=off") as third, nerite.connect(third.http) as made:
        assert (made.transport, made.model("simple").name) == ("region", "simple")
    with pytest.raises(ConnectionError, match=f"no server answers at http://{third.http}"):
        nerite.connect(third.http)


def test_the_sockets_of_a_killed_server_are_replaced(place, tmp_path, monkeypatch):
    killed = Started(tmp_path / "killed", "simple")
    killed.kill()
    left = sorted(place.iterdir())
    assert [path.name for path in left] == [f"session-{killed.port}.sock", "session.sock"]
    free_ports = servers.free_ports
    monkeypatch.setattr(servers, "free_ports", lambda count: [int(killed.port), *free_ports(count - 1)])
    with Started(tmp_path / "again", "identity_fp32"):
        assert sorted(place.iterdir()) == left
        for address in (None, f"localhost:{killed.port}"):
            with nerite.connect(address) as made:
                assert (made.transport, made.model("identity_fp32").name) == ("session", "identity_fp32")
    assert not os.listdir(place)
