"""Does a model's process outlive a client that takes its memory away, and does it say what was lost?"""

import os
import time

import numpy as np
import pytest
from model_server import IDENTITY, OBEDIENT, assert_eventually, given, guard_library, obey, placed, read_text, start  # noqa: F401

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def guarded(start):  # noqa: F811
    """Starts a child with the guard."""
    descriptors = []

    def guarded(source):
        descriptors.append(os.open(guard_library(), os.O_RDONLY))
        server = start(source, ready=False, guard=descriptors[-1])
        assert server.initialize()["ready"]["guard"] is True
        return server

    yield guarded
    for one in descriptors:
        os.close(one)


def test_a_region_serves_as_memory_of_the_servers_does(guarded):
    server = guarded(IDENTITY)
    region = server.memory(1 << 16, is_region=True, file_offset=PAGE + 40)
    array = np.arange(100, dtype=np.float32)
    answer = server.execute(server.request([given(region, "IN", array)], [["OUT", region.segment, 8192, 400, True]]))
    assert not answer.get("lost")
    assert (placed(server, answer["responses"][0]["outputs"][0]) == array).all()


def test_an_input_whose_memory_was_lost_is_reported_and_the_process_lives(guarded):
    server = guarded(IDENTITY)
    region, own = server.memory(1 << 16, is_region=True), server.memory(1 << 16)
    region.used = 3 * PAGE
    wanted = [["OUT", own.segment, 0, 400, False]]
    one = server.request([given(region, "IN", np.ones(100, np.float32))], wanted)
    assert not server.execute(one).get("lost")
    os.truncate(region.descriptor, PAGE)
    answer = server.execute(one)
    assert answer["lost"] == [[region.segment, 3 * PAGE]]
    assert (placed(server, answer["responses"][0]["outputs"][0]) == 0).all()
    fine = server.request([given(own, "IN", np.ones(100, np.float32))], [["OUT", own.segment, 8192, 400, False]])
    assert not server.execute(fine).get("lost")


def test_an_output_whose_memory_was_lost_is_reported(guarded):
    server = guarded(IDENTITY)
    region, own = server.memory(1 << 16, is_region=True), server.memory(1 << 16)
    one = server.request([given(own, "IN", np.ones(100, np.float32))], [["OUT", region.segment, 2 * PAGE, 400, True]])
    os.truncate(region.descriptor, PAGE)
    # Its first byte is where the array begins; where in it a copy touches first is the copy's affair.
    ((segment, offset),) = server.execute(one)["lost"]
    assert segment == region.segment and 2 * PAGE <= offset < 2 * PAGE + 400


def test_strings_whose_memory_was_lost_fail_their_request(guarded):
    server = guarded(IDENTITY)
    region, own = server.memory(1 << 16, is_region=True), server.memory(1 << 16)
    os.truncate(region.descriptor, PAGE)
    answer = server.execute(
        server.request([["IN", "BYTES", [2], region.segment, 2 * PAGE, 12]], [["OUT", own.segment, 0, 64, False]])
    )
    # Zeros are lengths of zero, and there are more of them than elements.
    assert answer["responses"][0]["error"][0] == "INVALID_ARG"
    assert answer["lost"] == [[region.segment, 2 * PAGE]]


def test_a_region_that_is_forgotten_is_unmapped_with_the_last_array(guarded):
    server = guarded(OBEDIENT)

    def mapped():
        with open(f"/proc/{server.process.pid}/maps") as file:
            return sum("memfd:test" in line for line in file)

    region = server.memory(1 << 20, is_region=True)
    one = given(region, "IN", np.arange(4, dtype=np.int32), "INT32")
    obey(server, "self.kept = request.inputs()[0].as_numpy()", [one], outputs=[])
    assert mapped() == 1
    server.send({"forget": [region.segment]})
    obey(server, "assert self.kept.tolist() == [0, 1, 2, 3]", outputs=[])
    assert mapped() == 1
    obey(server, "self.kept = None", outputs=[])
    assert_eventually(mapped, 0)


def test_the_system_ends_the_whole_group_of_a_guarded_process(guarded):
    server = guarded(OBEDIENT)
    get = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); out = n.value"  # PR_GET_PDEATHSIG
    number = int(read_text(server, obey(server, get)))
    assert number == 64
    started = int(read_text(server, obey(server, "import subprocess; out = subprocess.Popen(['sleep', '600']).pid")))
    forked = int(read_text(server, obey(server, "out = os.fork() or time.sleep(600)")))
    # A process that the model forked has the handler too. It ends alone.
    os.kill(forked, number)
    assert read_text(server, obey(server, f"_, status = os.waitpid({forked}, 0); out = os.waitstatus_to_exitcode(status)")) == "-9"
    assert os.path.exists(f"/proc/{started}")
    os.kill(server.process.pid, number)
    assert server.process.wait(60) == -9
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{started}") and state_of(started) not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def test_a_guard_that_cannot_be_loaded_is_not_there(start, tmp_path):  # noqa: F811
    (tmp_path / "guard").write_bytes(b"not a library")
    descriptor = os.open(tmp_path / "guard", os.O_RDONLY)
    server = start(OBEDIENT, ready=False, guard=descriptor)
    os.close(descriptor)
    assert server.initialize()["ready"]["guard"] is False
    level, text = server.receive(server.side)["log"]
    assert level == "WARNING" and text.startswith("the guard cannot be loaded here, so regions are copied by the server: ")
    assert "ready" in server.initialize()
