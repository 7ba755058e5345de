"""What can a Python model do to others that runs in a sandbox, and tries?

Its code is what the request says. The server runs as whoever runs the tests, mostly root, which is the harder case.
"""

import contextlib
import os
import pathlib
import time

import pytest
from clients import Refused, open_client, text
from python_catalogue import python, tensors, vector
from python_setup import SANDBOX, kernel_refuses, strings
from pythons import processes_of, serving
from regions import Region
from witness import are_answered, witnesses

DENIED, FORBIDDEN = "PermissionError: [Errno 13] Permission denied", "PermissionError: [Errno 1] Operation not permitted"
LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "


@pytest.fixture(scope="module")
def confined(launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("2.51 has no sandbox")
    if why := kernel_refuses():
        pytest.skip(why)
    socket = tmp_path_factory.mktemp("sandbox") / "socket"
    models = [vector("py_witness", "identity"), python("py_asking", "asking", tensors(CODE="BYTES"), tensors(SAID="BYTES"))]
    with serving(launcher, "sandbox", socket, models, SANDBOX) as found:
        yield found


@pytest.fixture
def run_code(confined):
    with open_client("http", confined) as client:

        def run_code(code: str) -> str:
            return strings(client.infer("py_asking", [text("CODE", [code.encode()])]).outputs["SAID"].raw)[0]

        yield run_code


def called(call: str) -> str:
    """What a system call past Python gives."""
    return LIBC + f"out = (libc.syscall({call}), ctypes.get_errno())"


FILES = [
    ("reads another model", "out = refused(open, '{other}/config.pbtxt')", DENIED),
    ("lists the repository", "out = refused(os.listdir, '{repository}')", DENIED),
    ("lists a home directory", "out = refused(os.listdir, '/root')", DENIED),
    ("reads the passwords", "out = refused(open, '/etc/shadow')", DENIED),
    ("reads the server's environment", "out = refused(open, f'/proc/{{os.getppid()}}/environ')", DENIED),
    ("reads the server's memory", "out = refused(open, f'/proc/{{os.getppid()}}/mem', 'rb')", DENIED),
    ("opens the server's descriptors", "out = refused(open, f'/proc/{{os.getppid()}}/fd/0')", DENIED),
    ("writes to a temporary directory of all", "out = refused(open, '/tmp/nerite_test_sandbox', 'w')", DENIED),
    ("writes to its own directory", "out = refused(open, '{own}/1/model.py', 'a')", DENIED),
    ("truncates its own file", "out = refused(os.truncate, '{own}/1/model.py', 0)", DENIED),
    ("removes its own file", "out = refused(os.remove, '{own}/1/model.py')", DENIED),
    ("changes the mode of a file", "out = refused(os.chmod, '{own}/1/model.py', 0o777)", FORBIDDEN),
    ("changes the owner of a file", "out = refused(os.chown, '{own}/1/model.py', 1, 1)", FORBIDDEN),
    ("changes the time of a file", "out = refused(os.utime, '{own}/1/model.py', (0, 0))", FORBIDDEN),
    ("marks a file", "out = refused(os.setxattr, '{own}/1/model.py', 'user.a', b'')", FORBIDDEN),
    ("marks a file that it may read as one not to dump",
     "import fcntl; out = refused(fcntl.ioctl, open('{own}/1/model.py'), 0x40086602, bytes([64, 0, 0, 0, 0, 0, 0, 0]))", FORBIDDEN),
    ("writes a file that is too large", "out = refused(open(os.environ['TMPDIR'] + '/a', 'wb', 0).truncate, 1000001)", "OSError: [Errno 27]"),
    ("makes a device", "out = refused(os.mknod, os.environ['TMPDIR'] + '/b', 0o60600, 0x801)", "PermissionError"),
    ("changes its root", "out = refused(os.chroot, os.environ['TMPDIR'])", FORBIDDEN),
    ("mounts", called("165, b'none', b'/tmp', b'tmpfs', 0, 0"), "(-1, 1)"),
]
MEMORIES = [
    ("looks for regions", "out = refused(os.listdir, '/dev/shm')", DENIED),
    ("opens another's region", "out = refused(open, '{region}', 'rb')", DENIED),
    ("makes a region", "out = refused(open, '/dev/shm/nerite_test_sandbox', 'wb')", DENIED),
    ("makes memory of System V", LIBC + "out = (libc.shmget(7, 4096, 0o1600), ctypes.get_errno())", "(-1, 1)"),
    ("makes a file of memory", "out = refused(os.memfd_create, 'a')", FORBIDDEN),
    ("allocates 100 GB", "out = refused(np.ones, 100 << 30, np.uint8)", "MemoryError: Unable to allocate 100. GiB"),
    ("allocates what is shared", "import mmap; out = refused(mmap.mmap, -1, 100 << 30)", FORBIDDEN),
    ("allocates bit by bit", "out = refused(lambda: [bytearray(1 << 20) for _ in range(100000)])", "MemoryError: "),
    ("makes secret memory", called("447, 0"), "(-1, 1)"),
    ("opens zeros that are memory", "out = refused(open, '/dev/zero', 'r+b', 0)", DENIED),
    ("maps what grows downwards", called("9, 0, ctypes.c_size_t(100 << 20), 3, 0x122, -1, 0"), "(-1, 1)"),
    ("raises the limit of its stack",
     "import resource; out = refused(resource.setrlimit, resource.RLIMIT_STACK, (-1, -1))", "ValueError: not allowed to raise"),
    ("raises its limit", "import resource; out = refused(resource.setrlimit, resource.RLIMIT_DATA, (-1, -1))", "ValueError: not allowed to raise"),
]
SOCKETS = [
    ("makes a socket of the internet", "import socket; out = refused(socket.socket)", FORBIDDEN),
    ("connects to the server", "import urllib.request as u; out = refused(u.urlopen, 'http://{http}')", "URLError: <urlopen error [Errno 1]"),
    ("speaks to the server's session socket", "import socket; out = refused(socket.socket, socket.AF_UNIX)", FORBIDDEN),
    ("speaks to the kernel", "import socket; out = refused(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW)", FORBIDDEN),
    ("makes a pair that could be connected anew",
     "import socket; out = refused(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)", FORBIDDEN),
    ("makes such a pair as a raw one", "import socket; out = refused(socket.socketpair, socket.AF_UNIX, socket.SOCK_RAW)", FORBIDDEN),
    ("takes the other interface of x86-64", called("0x40000000 + 41, 2, 1, 0"), "(-1, 1)"),
    ("takes a call that only the other interface has", called("0x40000000 + 533, 0, 0, 0, 0, 0"), "(-1, 1)"),
    ("takes a ring instead", called("425, 8, 0"), "(-1, 1)"),
]  # fmt: skip
OTHERS = [
    ("forks", "out = refused(os.fork)", FORBIDDEN),
    ("starts a program", "import subprocess; out = refused(subprocess.run, ['true'])", FORBIDDEN),
    ("starts a process by clone", called("56, 17, 0, 0, 0, 0"), "(-1, 1)"),
    ("starts a process by clone3", called("435, 0, 0"), "(-1, 38)"),
    ("makes a namespace", called("272, 0x10000000"), "(-1, 1)"),
    ("ends the server", "out = refused(os.kill, os.getppid(), signal.SIGKILL)", FORBIDDEN),
    ("signals the server's group", "out = refused(os.killpg, os.getpgid(os.getppid()), 0)", FORBIDDEN),
    ("signals by a descriptor", "out = refused(signal.pidfd_send_signal, os.pidfd_open(os.getppid()), signal.SIGKILL)", FORBIDDEN),
    ("traces the server", LIBC + "out = (libc.ptrace(16, os.getppid(), 0, 0), ctypes.get_errno())", "(-1, 1)"),
    ("reads the server's memory by a call", called("310, os.getppid(), 0, 0, 0, 0, 0"), "(-1, 1)"),
    ("takes the server's descriptors", called("438, os.pidfd_open(os.getppid()), 0, 0"), "(-1, 1)"),
    ("limits the server", "import resource; out = refused(resource.prlimit, os.getppid(), resource.RLIMIT_NOFILE, (1, 1))", "PermissionError"),
    ("keeps the server on one core", "out = refused(os.sched_setaffinity, os.getppid(), {{0}})", FORBIDDEN),
    ("slows the server down", "out = refused(os.setpriority, os.PRIO_PROCESS, os.getppid(), 19)", FORBIDDEN),
    ("slows all processes of its user down", "out = refused(os.setpriority, os.PRIO_USER, 0, 19)", FORBIDDEN),
    ("becomes another user", "out = refused(os.setuid, 1)", FORBIDDEN),
    ("reads keys", called("250, 0, -3, 1"), "(-1, 1)"),
    ("loads a program into the kernel", called("321, 0, 0, 0"), "(-1, 1)"),
    ("stops a server that writes to its terminal", "import fcntl; out = refused(fcntl.ioctl, 1, 0x5410, b'aaaa')", FORBIDDEN),
    ("types in the server's terminal", "import fcntl; out = refused(fcntl.ioctl, 1, 0x5412, b'a')", FORBIDDEN),
]
ATTACKS = FILES + MEMORIES + SOCKETS + OTHERS


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system calls are numbered as on x86-64")
@pytest.mark.parametrize(("code", "expect"), [pytest.param(*row[1:], id=row[0]) for row in ATTACKS])
def test_a_model_in_a_sandbox_that(confined, run_code, code, expect):
    with contextlib.closing(Region(4096, b"a secret")) as region:
        places = {
            "repository": confined.repository, "other": confined.repository / "py_witness", "own": confined.repository / "py_asking",
            "region": region.path, "http": confined.http,
        }  # fmt: skip
        said = run_code(code.format(**places))
    assert said.startswith(expect), said
    assert confined.process.poll() is None


def test_the_rows_above_are_attacks(launcher, tmp_path):
    """Without a sandbox most of them succeed: so it is the sandbox that refuses them, and not this host."""
    if launcher.oracle:
        pytest.skip("2.51 has no sandbox")
    harmless = ("reads another model", "lists the repository", "changes the mode of a file", "looks for regions", "makes a file of memory",
                "makes a socket of the internet", "speaks to the server's session socket", "forks", "starts a program",
                "slows the server down")  # fmt: skip
    models = [vector("py_witness", "identity"), python("py_asking", "asking", tensors(CODE="BYTES"), tensors(SAID="BYTES"))]
    with serving(launcher, "no_sandbox", tmp_path / "socket", models) as found, open_client("http", found) as client:
        places = {"repository": found.repository, "other": found.repository / "py_witness", "own": found.repository / "py_asking"}
        for title, code, _ in ATTACKS:
            if title not in harmless:
                continue
            # A fork must not live on as a second model, nor a priority change the rest of this run.
            code = code.format(**places).replace("refused(os.fork)", "refused(lambda: os.fork() or os._exit(0))").replace(", 19)", ", 0)")
            reply = client.infer("py_asking", [text("CODE", [code.encode()])])
            assert strings(reply.outputs["SAID"].raw) == ["not refused"], title


def test_what_the_sandbox_refuses_is_reported_to_the_client(confined):
    with open_client("http", confined) as client, pytest.raises(Refused) as caught:
        client.infer("py_asking", [text("CODE", [b"open('/etc/shadow')"])])
    assert "PermissionError: [Errno 13] Permission denied: '/etc/shadow'" in caught.value.text


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import subprocess\nout = [refused(os.fork) for _ in range(10000)][-1]", id="forks ten thousand times"),
        pytest.param("out = refused(lambda: [threading.Thread(target=time.sleep, args=(2,)).start() for _ in range(10000)])",
                     id="starts ten thousand threads"),
        pytest.param("out = refused(lambda: [np.ones(1 << 26, np.uint8) for _ in range(10000)])", id="takes all memory"),
        pytest.param("held = []\nout = refused(lambda: [held.append(os.open('/dev/null', 0)) for _ in range(10**7)])\n[os.close(one) for one in held]",
                     id="opens all files"),
    ],
)  # fmt: skip
def test_others_are_answered_while_a_model_in_a_sandbox(confined, run_code, code):
    with witnesses(confined) as found:
        before = time.monotonic()
        said = run_code(code)
        print(f"{time.monotonic() - before:.1f} s: {said[:100]}")
        are_answered(found, 3)
    assert said != "not refused"
    time.sleep(2)
    assert run_code("out = 1") == "1"


def test_what_a_model_needs_is_there(run_code):
    assert run_code("import socket, asyncio; out = asyncio.run(asyncio.sleep(0, 'asynchronous'))") == "asynchronous"
    assert run_code("import socket; a, b = socket.socketpair(); a.send(b'a'); out = b.recv(9)") == "b'a'"
    assert run_code("one = threading.Thread(target=self.kept.append, args=(7,)); one.start(); one.join(); out = self.kept.pop()") == "7"
    assert run_code("import tempfile; f = tempfile.NamedTemporaryFile(); f.write(b'abc'); f.flush(); out = open(f.name).read()") == "abc"
    assert run_code("os.makedirs(os.path.expanduser('~/.cache/a')); out = os.path.expanduser('~') == os.environ['TMPDIR']") == "True"
    assert run_code("out = open('/etc/passwd').readline().split(':')[0]") == "root"
    assert run_code("out = open(self.__class__.execute.__code__.co_filename).read(3)") == '"""'
    assert run_code("os.kill(os.getpid(), 0); signal.raise_signal(0) if 0 else None; out = os.sched_getaffinity(0) != set()") == "True"
    assert run_code("out = len('x' * (1 << 20)) and 'y' * (1 << 20)") == "y" * (1 << 20)


def test_its_temporary_files_are_its_own_and_go_with_the_server(launcher, tmp_path):
    if launcher.oracle or kernel_refuses():
        pytest.skip("nothing is confined here")
    models = [python(name, "asking", tensors(CODE="BYTES"), tensors(SAID="BYTES")) for name in ("py_asking", "py_second")]
    with serving(launcher, "two_sandboxes", tmp_path / "socket", [*models, vector("py_witness", "identity")], SANDBOX) as found:
        with open_client("http", found) as client:

            def run_code(model, code):
                return strings(client.infer(model, [text("CODE", [code.encode()])]).outputs["SAID"].raw)[0]

            kept = run_code("py_asking", "out = os.environ['TMPDIR']; open(out + '/kept', 'w').write('a')")
            assert run_code("py_second", f"out = refused(open, '{kept}/kept')").startswith(DENIED)
            assert run_code("py_second", "out = os.environ['TMPDIR']") != kept
            assert pathlib.Path(kept, "kept").read_text() == "a"
            first, *_ = [pid for pid in processes_of(found.pid) if kept in pathlib.Path(f"/proc/{pid}/environ").read_text()]
            assert run_code("py_second", f"out = refused(os.kill, {first}, 9)").startswith(FORBIDDEN)
            assert run_code("py_second", f"out = refused(open, '/proc/{first}/mem')").startswith(DENIED)
    deadline = time.monotonic() + 60
    while pathlib.Path(kept).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not pathlib.Path(kept).exists()
