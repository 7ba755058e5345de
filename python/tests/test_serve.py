"""Does ``nerite.serve`` start a server that ends with whoever started it?"""

import contextlib
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import peers
import pytest

import nerite
from nerite import _binary, _folder, _serve

EXAMPLES = peers.ROOT / "examples" / "models"
WAIT_S = 60


@pytest.fixture
def tmp_path():
    """A folder whose path is short: a server makes its socket elsewhere if the path of the socket would be too long."""
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)


@pytest.fixture(autouse=True)
def program(monkeypatch):
    monkeypatch.setenv("NERITE_BIN", str(peers.servers.nerite_binary()))


def is_there(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid: int) -> bool:
    deadline = time.monotonic() + WAIT_S
    while is_there(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_there(pid)


def test_a_server_serves_in_its_with_block_and_stops_at_its_end():
    with nerite.serve(EXAMPLES, id="block") as server:
        with server.connect() as client:
            assert client.transport == "session"
            out = client.model("identity_fp32")(np.arange(16, dtype=np.float32))
            assert out[next(iter(dict(out.items())))].tolist() == list(range(16))
        with server.connect("http") as client:
            assert client.model("digits").outputs
        folder = os.path.dirname(server.session_socket)
        assert os.stat(folder).st_mode & 0o777 == 0o700
        assert is_there(server.pid)
    assert not is_there(server.pid) and not os.path.exists(folder)
    assert server.stop() == 0
    assert "| server_id" in server.log and "block" in server.log


def test_settings_of_the_environment_are_another_servers(monkeypatch, tmp_path):
    for name, value in (("ALLOW_HTTP", "false"), ("CONFIG", "/no/such/file"), ("ID", "others"), ("SESSION_SOCKET", str(tmp_path / "others"))):
        monkeypatch.setenv(f"NERITE_{name}", value)
    with nerite.serve(EXAMPLES) as server, server.connect("http") as client:
        assert client.model("digits").inputs and "others" not in server.log
    assert not (tmp_path / "others").exists()


@pytest.mark.parametrize("flags", [{}, {"session_socket": "off"}], ids=["with_sessions", "without"])
def test_another_server_at_the_port_is_not_taken_for_ours(flags):
    with nerite.serve(EXAMPLES) as other:
        port = int(other.http.rpartition(":")[2])
        with pytest.raises(nerite.ServerError, match="already"):
            nerite.serve(EXAMPLES, http_port=port, **flags)


def test_several_run_side_by_side():
    with nerite.serve(EXAMPLES) as one, nerite.serve([EXAMPLES], log_verbose=1) as two:
        assert len({one.http, one.grpc, one.metrics, two.http, two.grpc, two.metrics}) == 6
        assert one.session_socket != two.session_socket


def test_flags_are_those_of_the_command_line(tmp_path):
    words = [word for name, value in {"a": True, "b": [1, 2], "c": tmp_path, "disable-auto-complete-config": True}.items()
             for word in _serve._words(name, value)]
    assert words == ["--a=true", "--b=1", "--b=2", f"--c={tmp_path}", "--disable-auto-complete-config"]
    assert not list(_serve._words("disable-auto-complete-config", False))
    usage = subprocess.run([_binary.binary(), "serve", "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    alone = {line.strip()[2:] for line in usage.splitlines() if line.startswith("  --") and " <" not in line}
    assert alone - {"help"} == _serve.ALONE


def test_without_http_it_waits_for_the_session_socket():
    with nerite.serve(EXAMPLES, allow_http=False) as server, server.connect() as client:
        assert client.transport == "session"


def connects(server, **options) -> None:
    with server.connect("http", **options) as client:
        assert client.model("identity_fp32").inputs


@pytest.mark.parametrize("is_mutual", [False, True], ids=["one_side", "mutual"])
def test_with_tls_it_waits_until_ready(is_mutual, tmp_path):
    trustme = pytest.importorskip("trustme")
    authority, names = trustme.CA(), {}
    own = authority.issue_cert("127.0.0.1")
    for name, blob in {"ca": authority.cert_pem, "key": own.private_key_pem, "cert": own.cert_chain_pems[0]}.items():
        blob.write_to_path(names.setdefault(name, str(tmp_path / name)))
    flags = {"http_use_ssl_mutual": True, "http_root_cert": names["ca"]} if is_mutual else {"http_use_ssl": True}
    options = {"ca_certs": names["ca"], **({"certfile": names["cert"], "keyfile": names["key"]} if is_mutual else {})}
    with nerite.serve(EXAMPLES, http_server_cert=names["cert"], http_server_key=names["key"], **flags) as server:
        assert server.http_url.startswith("https://127.0.0.1:")
        connects(server, ssl_options=options)


def test_where_health_is_restricted_it_waits_until_it_listens():
    with nerite.serve(EXAMPLES, http_restricted_api="health:k=v") as server:
        connects(server)


def test_an_address_of_ipv6_is_in_brackets():
    with nerite.serve(EXAMPLES, http_address="::1") as server:
        assert server.http_url.startswith("http://[::1]:")
        connects(server)


def test_a_failure_shows_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    with pytest.raises(nerite.ServerError, match="(?s)ended with status 1; its log:.*no-such"):
        nerite.serve(tmp_path / "no-such")
    with pytest.raises(nerite.ServerError, match="did you mean '--http-port'"):
        nerite.serve(EXAMPLES, http_prot=1)
    assert not list((tmp_path / "scratch").iterdir())


def test_a_server_that_is_not_ready_in_time_is_stopped(tmp_path):
    model = tmp_path / "slow" / "1"
    model.mkdir(parents=True)
    (model / "model.py").write_text(
        "import time\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(20)\n    def execute(self, requests):\n        return []\n"
    )
    (tmp_path / "slow" / "config.pbtxt").write_text('backend: "python"\nmax_batch_size: 0\n')
    before = time.monotonic()
    with pytest.raises(nerite.ServerError, match="(?s)not ready within 0.5 s; its log:"):
        nerite.serve(tmp_path, ready_within=0.5, exit_timeout_secs=0)
    assert time.monotonic() - before < WAIT_S


STARTS = """
import sys, time, nerite
server = nerite.serve(sys.argv[1])
print(server.pid, flush=True)
{then}
"""


def started(then: str, tmp_path, **options) -> tuple[subprocess.Popen, int]:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", STARTS.format(then=then), str(EXAMPLES)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, **options)
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_when_the_process_that_started_it_is_killed(number, tmp_path):
    parent, pid = started("time.sleep(600)", tmp_path)
    assert is_there(pid)
    parent.send_signal(number)
    parent.wait()
    assert ends(pid)


INTERRUPTED = """
try:
    print("waits", flush=True)
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
time.sleep(600)
"""


def test_an_interrupt_of_the_callers_process_group_does_not_reach_it(tmp_path):
    """Jupyter interrupts a cell so, and a terminal sends Ctrl-C so."""
    parent, pid = started(INTERRUPTED, tmp_path, start_new_session=True)
    try:
        # The signal must not come before the program expects it.
        assert parent.stdout.readline() == "waits\n"
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.readline() == "interrupted\n"
        (folder,) = tmp_path.iterdir()
        assert os.getpgid(pid) != parent.pid and is_there(pid)
        with nerite.connect(f"unix:{folder / 'session.sock'}") as client:
            assert client.model("digits").inputs
    finally:
        parent.kill()
        parent.wait()
    assert ends(pid)


@contextlib.contextmanager
def run_as_module(tmp_path, *flags: str):
    """``python -m nerite serve``, once it is ready."""
    socket_path, command = tmp_path / "session.sock", [sys.executable, "-m", "nerite", "serve"]
    off = ["--allow-grpc=false", "--allow-metrics=false", "--allow-http=false"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--model-repository={EXAMPLES}", f"--session-socket={socket_path}", *off, *flags], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + WAIT_S
        while not (socket_path.exists() and _serve._listens(str(socket_path))):
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.02)
        yield process, f"unix:{socket_path}"
    finally:
        process.kill()
        process.wait()


def test_the_module_is_the_server_and_stops_by_sigterm(tmp_path):
    with run_as_module(tmp_path) as (process, url):
        # The process of the interpreter became the server's.
        assert os.path.samefile(f"/proc/{process.pid}/exe", _binary.binary())
        with nerite.connect(url) as client:
            assert client.model("identity_fp32")(np.arange(4, dtype=np.float32)).OUTPUT0.tolist() == [0, 1, 2, 3]
        process.terminate()
        assert process.wait(WAIT_S) == 0


def test_the_module_ends_with_the_parent_that_a_flag_names(tmp_path):
    script = """
import os, subprocess, sys, time
server = subprocess.Popen([sys.executable, "-m", "nerite", "serve", *sys.argv[1:], f"--parent-pid={os.getpid()}"], stdout=subprocess.DEVNULL)
print(server.pid, flush=True)
time.sleep(600)
"""
    socket_path = tmp_path / "session.sock"
    flags = ["--allow-grpc=false", "--allow-metrics=false", "--allow-http=false", f"--session-socket={socket_path}", f"--model-repository={EXAMPLES}"]
    parent = subprocess.Popen([sys.executable, "-c", script, *flags], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    try:
        deadline = time.monotonic() + WAIT_S
        while not (socket_path.exists() and _serve._listens(str(socket_path))):
            assert is_there(pid) and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.wait()
    try:
        assert ends(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_the_next_server_removes_the_folder_of_a_killed_process_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    parent, _ = started("time.sleep(600)", tmp_path)
    (killed,) = tmp_path.iterdir()
    with nerite.serve(EXAMPLES) as server:
        assert killed.exists(), "its server runs"
        parent.kill()
        parent.wait()
        # The kernel releases the lock when the last thread of the killed server has ended, which may be after the process is a zombie.
        with (killed / _folder.LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert (killed / "log").exists()
        with nerite.serve(EXAMPLES) as next_one:
            assert not killed.exists()
            assert len(list(tmp_path.iterdir())) == 2
            for one in (server, next_one):
                with one.connect() as client:
                    assert client.model("digits").inputs
    assert not list(tmp_path.iterdir())


def made(path: pathlib.Path, mode: int = 0o700, has_lock: bool = True) -> pathlib.Path:
    """A folder as a killed process leaves it."""
    (path / "deeper").mkdir(parents=True)
    (path / "deeper" / "log").write_text("of a server")
    if has_lock:
        (path / _folder.LOCK).write_text("")
    path.chmod(mode)
    return path


def test_only_folders_of_ended_processes_of_this_user_are_removed(tmp_path):
    place = tmp_path / "place"
    abandoned = made(place / "nerite-serve-abandoned")
    elsewhere = made(tmp_path / "nerite-serve-elsewhere")
    others = [
        made(place / "nerite-other"),
        made(place / "nerite-serve-open", mode=0o755),
        made(place / "nerite-serve-begun", has_lock=False),
        made(place / "nerite-serve-held"),
        made(place / "nerite-serve-linked", has_lock=False),
        made(place / "nerite-serve-fifo", has_lock=False),
    ]
    (place / "nerite-serve-linked" / _folder.LOCK).symlink_to(elsewhere / _folder.LOCK)
    os.mkfifo(place / "nerite-serve-fifo" / _folder.LOCK)
    (place / "nerite-serve-link").symlink_to(elsewhere)
    (place / "nerite-serve-file").write_text("")
    (abandoned / "link").symlink_to(elsewhere)
    if os.geteuid() == 0:
        others.append(made(place / "nerite-serve-anothers"))
        os.chown(others[-1], 65534, 65534)
    with (place / "nerite-serve-held" / _folder.LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _folder.remove_abandoned(str(place))
        assert not abandoned.exists()
        assert all((one / "deeper" / "log").exists() for one in [*others, elsewhere])
        assert (place / "nerite-serve-file").exists() and (place / "nerite-serve-link").is_symlink()
    _folder.remove_abandoned(str(place))
    assert not (place / "nerite-serve-held").exists()
    _folder.remove_abandoned(str(tmp_path / "none"))


def test_children_that_were_forked_do_not_keep_it(tmp_path):
    forks = "import os\nif os.fork() == 0:\n    print('forked', flush=True)\ntime.sleep(600)"
    parent, pid = started(forks, tmp_path, start_new_session=True)
    try:
        assert parent.stdout.readline() == "forked\n"
        parent.kill()
        parent.wait()
        assert ends(pid)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)


def test_it_ends_when_the_process_ends_by_itself(tmp_path):
    parent, pid = started("", tmp_path)
    assert parent.wait(WAIT_S) == 0
    assert not is_there(pid)
    assert not list(tmp_path.iterdir())


def test_it_outlives_the_thread_that_started_it():
    found = []
    thread = threading.Thread(target=lambda: found.append(nerite.serve(EXAMPLES)))
    thread.start()
    thread.join()
    with found[0] as server:
        deadline = time.monotonic() + WAIT_S
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert is_there(server.pid)
        with server.connect() as client:
            assert client.model("digits").inputs


def test_a_server_whose_parent_is_another_does_not_start():
    done = subprocess.run(
        [_binary.binary(), "serve", f"--model-repository={EXAMPLES}", "--parent-pid=1", "--session-socket=off",
         "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"],
        capture_output=True, text=True, timeout=WAIT_S,
    )
    assert done.returncode == 1
    assert f"this server's parent is process {os.getpid()}" in done.stderr


def test_without_a_server_the_cure_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("NERITE_BIN", str(tmp_path / "none"))
    with pytest.raises(nerite.ServerMissing, match="NERITE_BIN is"):
        nerite.serve(EXAMPLES)
    monkeypatch.delenv("NERITE_BIN")
    monkeypatch.setattr(_binary, "_candidates", lambda: iter(()))
    with pytest.raises(nerite.ServerMissing, match="install the wheel of nerite "):
        nerite.serve(EXAMPLES)


def test_a_server_of_another_version_is_reported(monkeypatch):
    monkeypatch.setattr(_binary.importlib.metadata, "version", lambda name: "0.0.1")
    with pytest.warns(RuntimeWarning, match="the server is nerite 0.0.1, and its clients are nerite-client"):
        _binary.warn_of_other_version()
