"""Does a forked child keep the outputs that its parent had, whatever its parent calls later?"""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import weakref

import numpy as np
import pytest

import nerite
import nerite.http


def connected(server, way: str):
    if way == "session":
        return nerite.connect(f"unix:{server.session_socket}")
    client = nerite.connect(f"http://{server.http}", session_socket="/nonexistent/session.sock", buffers="auto" if way == "lease" else way)
    if way == "lease":
        client._socket_path = server.session_socket
    return client


@pytest.fixture(params=["session", "lease", "region"])
def client(request, launcher):
    with connected(launcher.get("nerite"), request.param) as made:
        assert made.transport == request.param
        yield made


class Child:
    """A forked process that checks something when it is told to."""

    def __init__(self, check):
        there, self._tell = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            signal.alarm(60)
            try:
                os.read(there, 1)
                os._exit(0 if check() else 1)
            except BaseException:
                os._exit(2)
        os.close(there)

    def result(self) -> int:
        # The pipe stays open in children that began later, so its end would tell nothing.
        os.write(self._tell, b"x")
        os.close(self._tell)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def memory_files() -> int:
    with open("/proc/self/maps", encoding="ascii") as lines:
        return sum("memfd:" in line or "/dev/shm/" in line for line in lines)


def test_children_keep_the_outputs_of_their_parent(client):
    identity = client.model("identity_fp32")
    children = []
    for number in range(4):
        output = identity(np.full(3, number, np.float32)).OUTPUT0
        children.append(Child(lambda output=output, number=number: output.tolist() == [number] * 3))
        del output
    for number in range(8):
        assert identity(np.full(3, 90 + number, np.float32)).OUTPUT0.tolist() == [90 + number] * 3
    assert [one.result() for one in children] == [0] * 4


def test_a_child_keeps_outputs_of_prepared_calls_of_large_ones_and_of_many(client):
    identity, size = client.model("identity_fp32"), 1 << 20
    for _ in range(3):
        kept = [identity(np.ones(4, np.float32)).OUTPUT0, identity(np.ones(size, np.float32), id="1").OUTPUT0]
    kept += [one.OUTPUT0 for one in identity.batch([np.ones(4, np.float32)] * 40)]
    child = Child(lambda: all((one == 1).all() for one in kept))
    del kept
    for number in range(2, 12):
        identity(np.full(4, number, np.float32))
        identity(np.full(size, number, np.float32), id="1")
        identity.batch([np.full(4, number, np.float32)] * 40)
    assert child.result() == 0


def test_a_child_keeps_outputs_of_asyncio(launcher):
    with connected(launcher.get("nerite"), "session") as client:
        identity, slow = client.model("identity_fp32"), client.model("slow_fp32")

        async def infer():
            for _ in range(3):
                output = (await identity.aio(np.ones(4, np.float32))).OUTPUT0
            before = client._loops[asyncio.get_running_loop()]
            in_flight = asyncio.ensure_future(slow.aio(np.ones(3, np.float32)))
            while not before._awaited:
                await asyncio.sleep(0)
            child = Child(lambda: output.tolist() == [1] * 4)
            del output
            for number in range(2, 12):
                await identity.aio(np.full(4, number, np.float32))
            assert child.result() == 0
            assert (await in_flight).OUTPUT0.tolist() == [1] * 3, "a call in flight goes on"
            return before, client._loops[asyncio.get_running_loop()]

        before, after = asyncio.run(infer())
        assert before is not after and before.broken and before not in client._all


def test_an_output_of_the_client_for_http_stays_too(launcher):
    server = launcher.get("nerite")
    for way in ("lease", "region"):
        with server.client("http", buffers=way) as client:
            given = nerite.http.InferInput("INPUT0", [4], "FP32")
            sized, unsized = nerite.http.InferOutput("OUTPUT0", [4], "FP32"), nerite.http.InferOutput("OUTPUT0")

            def infer(number, output):
                given.set_data_from_numpy(np.full(4, number, np.float32))
                return client.infer("identity_fp32", [given], outputs=[output]).as_numpy("OUTPUT0")

            kept = [infer(1, sized), infer(1, unsized)]
            child = Child(lambda: all(one.tolist() == [1] * 4 for one in kept))
            del kept
            for number in range(2, 12):
                infer(number, sized)
                infer(number, unsized)
            assert child.result() == 0


def test_a_closed_client_keeps_no_session_from_before_a_fork(launcher):
    client = launcher.get("nerite").client("http", buffers="lease")
    kept = client.register_input_tensor_with_shared_memory([4], "FP32").as_numpy()
    session = weakref.ref(client._buffers._ways[0]._transport._session)
    assert Child(lambda: True).result() == 0
    client.register_input_tensor_with_shared_memory([4], "FP32")
    client.close()
    assert session().is_alive(), "an array is in its memory"
    del kept
    gc.collect()
    assert session() is None


def test_a_lent_buffer_is_still_read_in_place_after_forks(launcher):
    with connected(launcher.get("nerite"), "session") as client:
        identity = client.model("identity_fp32")
        buffer = identity.input("INPUT0", [4])
        for number in range(10):
            buffer[:] = number
            assert identity().OUTPUT0.tolist() == [number] * 4
            assert Child(lambda: True).result() == 0
        assert client.copied_bytes == 0
        del buffer, identity._local.lent["INPUT0"]
        Child(lambda: True).result()
        identity(np.ones(4, np.float32))
        assert not client._lenders and len(client._all) == 1


def test_a_program_that_is_started_outdates_nothing(launcher):
    with connected(launcher.get("nerite"), "session") as client:
        identity = client.model("identity_fp32")
        identity([1.0])
        before = set(client._all)
        assert subprocess.run([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE, check=True).stdout == b"1\n"
        identity([1.0])
        assert client._all == before


def test_many_forks_keep_no_memory(client):
    identity = client.model("identity_fp32")
    seen = []
    for number in range(300):
        output = identity(np.full(3, number, np.float32)).OUTPUT0
        child = os.fork()
        if child == 0:
            os._exit(0 if output.tolist() == [number] * 3 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        if number % 30 == 29:
            seen.append((memory_files(), len(os.listdir("/proc/self/fd")), len(client._all)))
    assert max(files for files, _, _ in seen) <= min(files for files, _, _ in seen) + 20, seen
    assert max(descriptors for _, descriptors, _ in seen) <= min(descriptors for _, descriptors, _ in seen) + 5, seen
    assert len(client._all) == 1


THREADS = """
import os, signal, sys, threading, time
import numpy as np
import nerite

signal.alarm(100)
client = nerite.connect(f"unix:{sys.argv[1]}")
identity = client.model("identity_fp32")
# What each thread has got last, which a child sees whenever it begins.
latest, over, wrong = [[] for _ in range(4)], threading.Event(), []
sys.setswitchinterval(1e-5)

def infer(index):
    number = 0
    while not over.is_set():
        number += 4
        output = identity(np.full(64, number + index, np.float32)).OUTPUT0
        if not (output == number + index).all():
            wrong.append(number)
        latest[index] = [(number + index, output)] + latest[index][:1]
        del output

threads = [threading.Thread(target=infer, args=(index,)) for index in range(4)]
for one in threads:
    one.start()
children = []
while not all(latest):
    time.sleep(0.01)
for _ in range(30):
    there, tell = os.pipe()
    child = os.fork()
    if child == 0:
        seen = [one for some in latest for one in some]
        os.read(there, 1)
        os._exit(0 if seen and all((output == number).all() for number, output in seen) else 1)
    os.close(there)
    children.append((child, tell))
    time.sleep(0.02)
over.set()
for one in threads:
    one.join()
for _, tell in children:
    os.write(tell, b"x")
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, _ in children].count(0), wrong, len(client._all) <= 8)
"""


def test_children_that_begin_while_threads_call_keep_what_they_saw(launcher):
    server = launcher.get("nerite")
    ended = subprocess.run([sys.executable, "-c", THREADS, server.session_socket], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "30 [] True\n"), ended.stderr
