"""What if there is too little of what clients ask for: a small /dev/shm, few descriptors?

For the first the server gets a mount namespace of its own, with a /dev/shm of 8 MiB; that needs root.
"""

import contextlib
import mmap
import os
import pathlib
import shutil
import socket
import subprocess

import graphs
import make_models
import numpy as np
import pytest
import python_catalogue
import servers
from clients import Given, Refused, RequestedOutput, fp32, open_client, refuses
from server_setup import RESIDENT_SLACK, onnxruntime_library
from region_faults import punch_hole
from packets import open_session
from regions import fresh_name
from witness import any_client, comes_to, descriptors, falls_to, left_alone, mapped_objects, resident, settled, with_each_protocol

PAGE = os.sysconf("SC_PAGESIZE")
ROOM_MIB = 8
SIZE = 1 << 20

FURNISH = f"""
set -e
mount -t tmpfs -o size={ROOM_MIB}m tmpfs /dev/shm
mkdir /dev/shm/.huge
if mount -t hugetlbfs none /dev/shm/.huge; then
    truncate -s 2M /dev/shm/.huge/file
    : > /dev/shm/huge
    mount --bind /dev/shm/.huge/file /dev/shm/huge
fi
: > /dev/shm/disk
mount --bind "$1" /dev/shm/disk
shift
exec "$@"
"""


def can_unshare() -> bool:
    if not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module", params=["embedded", "onnxruntime"])
def room(request: pytest.FixtureRequest, launcher, tmp_path_factory):
    """A server with a small /dev/shm, whose ONNX models run on one of the two engines; `server.shm` is where others find it."""
    if launcher.oracle:
        pytest.skip("a /dev/shm without room kills 2.51 (SIGBUS)")
    if not can_unshare():
        pytest.skip("no mount namespace to be had: not root")
    scratch = tmp_path_factory.mktemp("room")
    (scratch / "disk").write_bytes(bytes(4 * PAGE))
    repository = launcher.copy_of(scratch.name, "identity_fp32")
    make_models.put(repository, "sums", graphs.add_sub("FP32", ["batch", "n"]))
    python_catalogue.put(repository, python_catalogue.vector("py_identity", "identity"))
    library = "none" if request.param == "embedded" else onnxruntime_library()
    flags = [f"--session-socket={scratch / 'socket'}", f"--onnxruntime-library={library}"]
    command, environment = servers.nerite_command(repository)
    furnished = ["unshare", "-m", "--propagation", "private", "sh", "-c", FURNISH, "sh", str(scratch / "disk"), *command]
    server = servers.start(furnished, environment, flags, scratch / "log", oracle=False, repository=repository)
    server.shm = pathlib.Path(f"/proc/{server.pid}/root/dev/shm")
    server.session = scratch / "socket"
    try:
        yield server
    finally:
        servers.stop(server)


@pytest.fixture
def client(request: pytest.FixtureRequest, room):
    with any_client(getattr(request, "param", "http"), room) as found:
        yield found


class Object:
    """A registered object of the small /dev/shm."""

    def __init__(self, room, client, byte_size: int):
        self.name, self.byte_size, self.client = fresh_name(), byte_size, client
        self.path = room.shm / f"nerite_test_{self.name}"
        descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.ftruncate(descriptor, byte_size)
        self.map = mmap.mmap(descriptor, byte_size)
        os.close(descriptor)
        self.register()

    def register(self) -> None:
        self.client.register_system(self.name, f"/{self.path.name}", self.byte_size)

    def close(self) -> None:
        self.client.unregister("system", self.name)
        self.map.close()
        self.path.unlink()


@contextlib.contextmanager
def lent(room, client, byte_size: int):
    with contextlib.closing(Object(room, client, byte_size)) as made:
        yield made


def through(client, model: str, source, target, offset: int = 0) -> None:
    """A megabyte of one object into another at that offset, by way of a model: as it is, or all of its numbers doubled."""
    where = (source.name, SIZE, 0)
    outputs = [RequestedOutput("OUTPUT0", (target.name, SIZE, offset))]
    if model == "sums":
        given = [Given(name, "FP32", [1, SIZE // 4], region=where) for name in ("INPUT0", "INPUT1")]
    else:
        given = [Given("INPUT0", "FP32", [SIZE // 4], region=where)]
    client.infer(model, given, outputs)


NUMBERS = np.random.default_rng(1).random(SIZE // 4, np.float32)
MADE_OF = {"identity_fp32": NUMBERS, "sums": NUMBERS + NUMBERS, "py_identity": NUMBERS}


@contextlib.contextmanager
def nothing_stays(room):
    yield
    assert room.process.poll() is None, room.log_text()[-3000:]
    comes_to(lambda: mapped_objects(room.pid), 0)


def lost(made, byte_size: int) -> str:
    return f"shared memory region '{made.name}' can no longer be used: its object '/{made.path.name}' was {byte_size} "


@pytest.mark.parametrize("model", list(MADE_OF))
def test_more_promised_than_there_is_room_for(room, client, model):
    """Requests over pages that do not exist fail, by the region's name; all others are answered to the byte."""
    with lent(room, client, SIZE):
        client.infer("identity_fp32", [Given("INPUT0", "FP32", [1], raw=bytes(4))])
    held, expected = settled(lambda: resident(room.pid)), MADE_OF[model].tobytes()
    with nothing_stays(room), lent(room, client, SIZE) as good, lent(room, client, SIZE) as apart:
        good.map[:], apart.map[:] = NUMBERS.tobytes(), bytes(SIZE)
        for _ in range(3):
            with lent(room, client, 64 << 20) as vain:
                for source, target in ((good, vain), (vain, apart)):
                    with refuses("INVALID_ARG", lost(vain, 64 << 20)):
                        # Megabyte after megabyte, until there is no room.
                        for offset in range(0, vain.byte_size, SIZE):
                            through(client, model, good, vain, offset)
                    through(client, model, good, apart)
                    assert apart.map[:] == expected
                    with refuses("INVALID_ARG", lost(vain, 64 << 20)):
                        through(client, model, source, target)
                # With room again, and registered again, it is as good as any.
                os.truncate(vain.path, 0)
                os.truncate(vain.path, 64 << 20)
                vain.register()
                through(client, model, good, vain)
                assert vain.map[:SIZE] == expected
    falls_to(lambda: resident(room.pid), held + RESIDENT_SLACK)


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("model", list(MADE_OF))
def test_a_hole_where_there_is_no_room(room, client, model, side):
    """Elsewhere a hole is zeros; here it is a fault, as what was never there."""
    with nothing_stays(room), lent(room, client, SIZE) as good, lent(room, client, SIZE) as bad:
        good.map[:] = bad.map[:] = NUMBERS.tobytes()
        ends = (bad, good) if side == "input" else (good, bad)
        through(client, model, *ends)
        good.map[:] = NUMBERS.tobytes()
        with contextlib.closing(Filler(room)) as filler:
            punch_hole(bad.path, 0, SIZE)
            filler.take_all()
            for _ in range(2):
                with refuses("INVALID_ARG", lost(bad, SIZE)):
                    through(client, model, *ends)
        bad.register()
        bad.map[:] = NUMBERS.tobytes()
        through(client, model, *ends)
        assert ends[1].map[:] == MADE_OF[model].tobytes()


class Filler:
    """An object that takes what room there is."""

    def __init__(self, room):
        self.path = room.shm / f"nerite_test_{fresh_name()}"
        self.descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)

    def take_all(self) -> None:
        room = os.fstatvfs(self.descriptor)
        os.posix_fallocate(self.descriptor, 0, os.fstat(self.descriptor).st_size + room.f_bavail * room.f_frsize)
        assert os.fstatvfs(self.descriptor).f_bavail == 0

    def close(self) -> None:
        os.close(self.descriptor)
        self.path.unlink()


@with_each_protocol
@pytest.mark.parametrize("key", ["huge", "disk"])
def test_files_of_other_file_systems(room, client, key):
    """Of huge pages, of which there may be none when they are touched, and of a disk."""
    if not (room.shm / key).exists():
        pytest.skip("hugetlbfs cannot be mounted here")
    for _ in range(20):
        with pytest.raises(Refused) as caught:
            client.register_system(fresh_name(), f"/{key}", PAGE)
        assert "it is not on a tmpfs; shared memory objects live in memory" in caught.value.text
    assert mapped_objects(room.pid) == 0


# ---------------------------------------------------------------------------------------------- descriptors

FEW = 160


@pytest.fixture
def poor(launcher, tmp_path_factory):
    """A server that may have few descriptors."""
    if launcher.oracle or not shutil.which("prlimit"):
        pytest.skip("a server of its own, and prlimit")
    scratch = tmp_path_factory.mktemp("poor")
    command, environment = servers.nerite_command(launcher.copy_of(scratch.name, "identity_fp32"))
    flags = [f"--session-socket={scratch / 'socket'}"]
    server = servers.start(["prlimit", f"--nofile={FEW}:{FEW}", *command], environment, flags, scratch / "log", oracle=False)
    server.session = scratch / "socket"
    try:
        yield server
    finally:
        servers.stop(server)


def test_clients_that_take_all_descriptors(poor):
    """Nobody else can be served while they do; but the server lives, and serves again when they are gone."""
    with open_session(poor.session), open_client("grpc", poor) as client:
        client.infer("identity_fp32", [fp32("INPUT0", [1])])
    left_alone(poor)
    before = settled(lambda: descriptors(poor.pid))
    for _ in range(3):
        with contextlib.ExitStack() as held:
            owner = held.enter_context(open_session(poor.session))
            client = held.enter_context(open_client("grpc", poor))
            outputs = [RequestedOutput("OUTPUT0", (owner.welcome.session_key, 0, 0))]
            # Leases whose descriptors nobody fetches; when there are no more of them, outputs travel inline.
            for _ in range(2 * FEW):
                client.call("ModelInfer", client.request("identity_fp32", [fp32("INPUT0", [1])], outputs))
            with refuses("INTERNAL", ""):
                owner.borrow(PAGE)
            # Connections that nobody can accept; they stay in the listener's queue.
            for _ in range(FEW // 2):
                held.enter_context(contextlib.closing(waiting(poor.session)))
            assert descriptors(poor.pid) <= FEW
        comes_to(lambda: descriptors(poor.pid), before)
        with open_session(poor.session) as again:
            lease = again.borrow(PAGE, bytes(4))
            again.infer("identity_fp32", [Given("INPUT0", "FP32", [1], region=(lease.name, 4, 0))])
        comes_to(lambda: descriptors(poor.pid), before)


def waiting(path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(str(path))
    return made
