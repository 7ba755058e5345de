"""What can somebody do who is first at the place of the session socket, or removes it?

The place is that of a server without --session-socket: a directory of the user's in one that is like /tmp, where everybody may make
files and nobody may touch those of others.
"""

import contextlib
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import urllib.request

import pytest
import servers
from clients import fp32, open_client
from packets import open_session, peer_pid
from witness import comes_to, stopped

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOBODY = 65534
PAGE = os.sysconf("SC_PAGESIZE")


@pytest.fixture
def place(launcher, monkeypatch):
    """The default place of the session socket; its directory is not there yet."""
    if launcher.oracle:
        pytest.skip("2.51 has no sessions")
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    shared = pathlib.Path(tempfile.mkdtemp(prefix="nerite-place-"))
    shared.chmod(0o1777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared))
    for name in ("NERITE_SESSION_SOCKET", "NERITE_SERVER_UID"):
        monkeypatch.delenv(name, raising=False)
    yield shared / "nerite" / "session.sock"
    shutil.rmtree(shared)


@pytest.fixture
def running(launcher):
    """Starts a server at the default place."""

    @contextlib.contextmanager
    def start():
        repository = launcher.copy_of("session_socket", "identity_fp32")
        with launcher.running("session_socket", repository=repository) as found:
            yield found

    return start


def run_as(uid: int, program: str, *words) -> None:
    """Runs Python code as another user."""
    drop = f"import os, socket, sys; os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
    subprocess.run([sys.executable, "-c", drop + program, *map(str, words)], check=True, timeout=60)


def metric(server, name: str) -> int:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def is_up(server) -> int:
    return metric(server, "nerite_session_socket_up")


def serves_sessions(server, path) -> None:
    assert peer_pid(path) == server.pid
    with open_session(path) as client:
        client.borrow(PAGE)


def serves_http(server) -> None:
    with open_client("http", server) as client:
        assert client.infer("identity_fp32", [fp32("INPUT0", [1, 2])]).outputs["OUTPUT0"].raw


# ---------------------------------------------------------------------------------------------- the place


def test_the_default_place_is_the_users_own(place, running):
    with running() as server:
        for path, mode in ((place.parent, 0o700), (place, 0o600)):
            found = path.lstat()
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (mode, 0)
        assert is_up(server) == 1
        serves_sessions(server, place)
    assert not place.exists()


def by_another_user(path):
    run_as(NOBODY, "os.mkdir(sys.argv[1], 0o777)", path)


def by_another_user_with_a_socket(path):
    by_another_user(path)
    listen = "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind(sys.argv[1] + '/session.sock')"
    run_as(NOBODY, listen, path)


def by_another_user_as_a_link(path):
    run_as(NOBODY, "os.symlink('/root', sys.argv[1])", path)


def as_a_link_to_the_servers_own(path):
    own = path.parent / "own"
    own.mkdir(mode=0o700)
    path.symlink_to(own)


def open_to_others(path):
    path.mkdir()
    path.chmod(0o755)


def as_a_file(path):
    path.write_text("")


SQUATTED = [
    (by_another_user, "belongs to user 65534, and the server is user 0"),
    (by_another_user_with_a_socket, "belongs to user 65534, and the server is user 0"),
    (by_another_user_as_a_link, "which user 65534 made, is no directory or a link to one"),
    (as_a_link_to_the_servers_own, "which user 0 made, is no directory or a link to one"),
    (open_to_others, "has mode 0755, which lets others in; `chmod 0700 "),
    (as_a_file, "is no directory or a link to one"),
]


@pytest.mark.parametrize("squat, reason", SQUATTED, ids=[squat.__name__ for squat, _ in SQUATTED])
def test_a_place_that_is_not_the_servers_is_reported_and_had_once_it_is_free(place, running, squat, reason):
    squat(place.parent)
    before = sorted(place.parent.rglob("*"))
    with running() as server:
        serves_http(server)
        assert is_up(server) == 0
        log = server.log_text()
        assert "no sessions (nerite_session_socket_up is 0)" in log and reason in log, log
        # Not even the place that a link leads to was touched.
        assert sorted(place.parent.rglob("*")) == before
        if place.parent.is_dir() and not place.parent.is_symlink():
            shutil.rmtree(place.parent)
        else:
            place.parent.unlink()
        comes_to(lambda: is_up(server), 1)
        serves_sessions(server, place)
        # The one that only the first server of the user has, and its own.
        assert metric(server, "nerite_session_socket_reopened_total") == 2


def test_a_path_that_was_named_and_is_taken_ends_the_start(place, launcher):
    taken = place.parent.parent / "taken"
    listen = "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind(sys.argv[1]); s.listen(0)\n"
    drop = f"import os, socket, sys; os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    wait = "print('listening', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", drop + listen + wait, str(taken)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout.readline() == "listening\n"
        command, environment = servers.nerite_command(launcher.copy_of("named_and_taken", "identity_fp32"))
        ports = [f"--{kind}-port={port}" for kind, port in zip(("http", "grpc", "metrics"), servers.free_ports(3))]
        words = [*command, *ports, f"--session-socket={taken}"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
        squatter.stdin.close()
    assert done.returncode == 1
    assert f"failed to start session service: Unavailable - session socket '{taken}' is in use" in done.stderr


# ---------------------------------------------------------------------------------------------- its file


def test_a_socket_that_is_removed_is_made_anew_and_sessions_go_on(place, running):
    with running() as server, open_session(place) as before:

        def has_another(remove):
            times = metric(server, "nerite_session_socket_reopened_total")
            with stopped(server):
                remove()
            comes_to(lambda: metric(server, "nerite_session_socket_reopened_total") > times, True)
            comes_to(lambda: is_up(server), 1)
            assert stat.S_IMODE(place.lstat().st_mode) == 0o600
            serves_sessions(server, place)
            before.borrow(PAGE)

        has_another(place.unlink)
        has_another(lambda: place.rename(place.parent.parent / "moved"))
        has_another(lambda: shutil.rmtree(place.parent))
        assert stat.S_IMODE(place.parent.lstat().st_mode) == 0o700
        has_another(lambda: place.parent.rename(place.parent.parent / "elsewhere"))
        assert "was removed or replaced; it is made anew" in server.log_text()
        serves_http(server)
    assert not place.exists()


def test_a_directory_that_another_user_takes_in_between_is_not_used(place, running):
    with running() as server:
        with stopped(server):
            place.parent.rename(place.parent.parent / "moved")
            by_another_user_with_a_socket(place.parent)
        comes_to(lambda: is_up(server), 0)
        assert "belongs to user 65534, and the server is user 0" in server.log_text()
        assert place.parent.lstat().st_uid == NOBODY
        assert [each.lstat().st_uid for each in place.parent.iterdir()] == [NOBODY], "the server left nothing there"
        serves_http(server)
        # The place is the server's again once it is free.
        with stopped(server):
            shutil.rmtree(place.parent)
        comes_to(lambda: is_up(server), 1)
        assert place.parent.lstat().st_uid == 0
        serves_sessions(server, place)


# ---------------------------------------------------------------------------------------------- who waits there for tensors

STRANGER = ROOT / "python" / "tests" / "test_trust.py"
CLIENT = """
import sys, warnings
import numpy as np
import nerite.http as client_module

warnings.simplefilter("always")
with client_module.InferenceServerClient(sys.argv[1]) as client:
    given = client_module.InferInput("INPUT0", [1024], "FP32")
    given.set_data_from_numpy(np.arange(1024, dtype=np.float32))
    handle = client.register_input_tensor_with_shared_memory([1024], "FP32")
    client.copy_to_shared_memory(handle, np.arange(1024, dtype=np.float32))
    result = client.infer("identity_fp32", [given], outputs=[client_module.InferOutput("OUTPUT0")])
    assert (result.as_numpy("OUTPUT0") == np.arange(1024, dtype=np.float32)).all()
    print(client.buffer_transport)
"""


@contextlib.contextmanager
def stranger(path):
    """Another user who listens there; gives what it got once it is asked."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    words = [sys.executable, str(STRANGER), str(path), str(NOBODY)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "listening\n"
        try:
            yield lambda: process.communicate("\n", timeout=60)[0]
        finally:
            process.kill()


def python_client(server, **environment):
    """What the Python client says when it may use the socket."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment}
    words = [sys.executable, "-c", CLIENT, server.http]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)


def nerite(*words):
    return subprocess.run([servers.nerite_binary(), *words], capture_output=True, text=True, timeout=240)


def test_a_stranger_at_a_path_that_was_named_gets_no_byte(place, running):
    waiting = place.parent.parent / "waiting"
    with stranger(waiting) as received, running() as server:
        result = python_client(server, NERITE_SESSION_SOCKET=str(waiting))
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() in ("region", "inline")
        refusal = f"session socket '{waiting}' is not used: the server there is user 65534, and this is user 0"
        assert f"RuntimeWarning: {refusal}" in result.stderr, result.stderr
        shm = nerite("shm", "list", "--session-socket", waiting)
        assert shm.returncode == 1
        assert "is not used: the server there is user 65534, and this is user 0; if that" in shm.stderr, shm.stderr
        doctor = nerite("doctor", "shm", "--session-socket", waiting)
        assert doctor.returncode == 1
        assert "the server there is user 65534, and this is user 0" in doctor.stdout, doctor.stdout
        assert received() == "3 connections, 0 bytes\n"


def test_a_stranger_at_the_default_place_is_not_even_connected_to(place, running):
    by_another_user(place.parent)
    with stranger(place) as received, running() as server:
        result = python_client(server)
        assert result.returncode == 0 and result.stdout.strip() in ("region", "inline"), result.stderr
        assert "belongs to user 65534, and this is user 0" in result.stderr, result.stderr
        shm = nerite("shm", "list")
        assert shm.returncode == 1 and "belongs to user 65534, and this is user 0" in shm.stderr, shm.stderr
        doctor = nerite("doctor", "shm")
        assert "belongs to user 65534, and this is user 0" in doctor.stdout, doctor.stdout
        assert received() == "0 connections, 0 bytes\n"


def test_a_server_of_a_user_who_was_named_is_used(place):
    waiting = place.parent.parent / "waiting"
    with stranger(waiting) as received:
        # It answers nobody: that it got anything is what is asked here.
        shm = nerite("shm", "list", "--session-socket", waiting, f"--server-uid={NOBODY}")
        assert "does not answer within" in shm.stderr, shm.stderr
        connections, bytes_ = received().split(", ")
        assert connections == "1 connections" and bytes_ != "0 bytes\n"


def test_the_servers_own_place_is_used(place, running):
    with running() as server:
        result = python_client(server)
        assert (result.returncode, result.stdout.strip()) == (0, "lease"), result.stderr
        assert "Warning" not in result.stderr, result.stderr
        assert nerite("shm", "list").returncode == 0
        assert f"process {server.pid} listens at {place}" in nerite("doctor", "shm").stdout
