"""Whom does a client talk to, and what does somebody else's socket learn?"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import warnings

import pytest
from session_server import SessionServer

from nerite import _trust
from nerite._managed import Buffers
from nerite._session import LeaseTransport, Session, Untrusted
from nerite._trust import Directory, why_not

OWN, OTHER = 7, 8


@pytest.mark.parametrize(
    "directory, peer, named, reason",
    [
        (None, None, None, None),
        (None, OWN, None, None),
        (None, 0, None, None),
        (None, OTHER, OTHER, None),
        (None, OWN, OTHER, None),
        (None, OTHER, None, "the server there is user 8, and this is user 7"),
        (None, OTHER, 9, "the server there is user 8, and this is user 7"),
        ((OWN, 0o700, True), OTHER, None, "the server there is user 8, and this is user 7"),
        ((OWN, 0o700, True), OWN, None, None),
        ((0, 0o755, True), 0, None, None),
        ((OTHER, 0o700, True), None, None, "its directory '/d' belongs to user 8, and this is user 7"),
        ((OTHER, 0o700, True), OWN, None, "its directory '/d' belongs to user 8, and this is user 7"),
        ((OTHER, 0o700, True), OTHER, OTHER, "its directory '/d' belongs to user 8, and this is user 7"),
        ((OWN, 0o720, True), OWN, None, "its directory '/d' has mode 0720: others could put a socket there"),
        ((OWN, 0o1777, True), OWN, None, "its directory '/d' has mode 1777: others could put a socket there"),
        ((OWN, 0o777, False), OWN, None, "'/d', made by user 7, is no directory or a link to one"),
    ],
)
def test_which_sockets_a_client_trusts(directory, peer, named, reason):
    found = why_not(OWN, named, Directory("/d", *directory) if directory else None, peer)
    assert (found or "").split("; ")[0] == (reason or "")


def test_the_refusal_of_a_socket_names_the_cure():
    assert why_not(OWN, None, None, OTHER).endswith("name its user: server_uid=8 or NERITE_SERVER_UID=8")
    assert "remove '/d'" in why_not(OWN, None, Directory("/d", OTHER, 0o700, True), None)


@pytest.fixture
def stranger():
    """A socket at which another user listens, and counts the bytes that it gets."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    program = os.path.abspath(__file__)
    # Not in a folder of pytest's: those above it are closed to other users.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "s")
        process = subprocess.Popen(
            [sys.executable, program, path, "65534"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "listening\n"
        yield process, path
        process.kill()
        process.wait()


def received(process) -> str:
    """What the stranger got, once it has been told to end."""
    printed, _ = process.communicate("\n", timeout=60)
    return printed


def test_the_socket_of_another_user_gets_no_byte(stranger):
    process, path = stranger
    with pytest.raises(Untrusted, match="the server there is user 65534, and this is user 0"):
        Session(path)
    assert received(process) == "1 connections, 0 bytes\n"


def test_other_ways_are_taken_with_a_warning(stranger):
    process, path = stranger
    buffers = Buffers(["lease", "inline"], {"lease": lambda: LeaseTransport("localhost:1", path)})
    with pytest.warns(RuntimeWarning, match="is not used: the server there is user 65534"):
        assert buffers.way() == "inline"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert buffers.way() == "inline"
    buffers.close()
    assert received(process) == "1 connections, 0 bytes\n"


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_the_socket_of_a_named_user_is_used(stranger, monkeypatch, by):
    process, path = stranger
    options = {"server_uid": 65534} if by == "argument" else {}
    if by == "environment":
        monkeypatch.setenv("NERITE_SERVER_UID", "65534")
    with pytest.raises(Exception) as caught:
        Session(path, answer_s=1, **options)
    assert not isinstance(caught.value, Untrusted)
    assert "0 bytes" not in received(process)


def test_a_name_in_place_of_a_user_number_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("NERITE_SERVER_UID", "root")
    with pytest.raises(Untrusted, match="NERITE_SERVER_UID is 'root', which is not the number of a user"):
        Session(str(tmp_path / "s"))


def test_the_default_directory_is_checked_before_a_connection_is_made(tmp_path, monkeypatch):
    monkeypatch.delenv("NERITE_SESSION_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert _trust.default_path() == str(tmp_path / "nerite" / "session.sock")
    (tmp_path / "nerite").mkdir(mode=0o700)
    server = SessionServer(tmp_path / "nerite" / "session.sock")
    Session(_trust.default_path()).close()
    (tmp_path / "nerite").chmod(0o777)
    with pytest.raises(Untrusted, match="has mode 0777: others could put a socket there"):
        Session(_trust.default_path())
    (tmp_path / "nerite").chmod(0o700)
    (tmp_path / "nerite").rename(tmp_path / "elsewhere")
    (tmp_path / "nerite").symlink_to("elsewhere")
    with pytest.raises(Untrusted, match="is no directory or a link to one"):
        Session(_trust.default_path())
    # At a path that was named that is the program's affair.
    Session(str(tmp_path / "elsewhere" / "session.sock")).close()
    assert len(server.hellos) == 2
    server.close()


def listen_as(path: str, uid: int) -> None:
    """What the stranger does: listens, says what it got when it is told to end, and answers nobody."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    os.chmod(path, 0o666)
    listener.listen()
    print("listening", flush=True)
    sys.stdin.readline()
    # The clients have closed their ends, so all connections and what was sent there wait here.
    listener.setblocking(False)
    connections, got = 0, 0
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, _ = listener.accept()
            connections += 1
            while packet := connection.recv(1 << 17):
                got += len(packet)
    print(f"{connections} connections, {got} bytes", flush=True)


if __name__ == "__main__":
    listen_as(sys.argv[1], int(sys.argv[2]))
