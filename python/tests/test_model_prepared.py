"""Is a request that equals an earlier one served as if it were the first?"""

import os
import threading

import numpy as np
import pytest
from model_server import IDENTITY, OBEDIENT, ModelServer, assert_eventually, given, guard_library, obey, placed, read_text, start  # noqa: F401

from nerite.model.memory import Memory
from nerite.model.prepared import Prepared

# More than the number of equal requests after which what they share is kept.
TIMES = 5
KEPT = "import sys; kept = next(m for name, m in sys.modules.items() if name.endswith('.prepared'))._known; "
COUNT = "self.n = getattr(self, 'n', 0) + 1; "


def kept(server: ModelServer) -> int:
    """The number of requests that the process keeps."""
    return int(read_text(server, obey(server, KEPT + "out = len(kept)")))


def test_each_gets_an_array_of_its_own(start):  # noqa: F811
    server = start(OBEDIENT)
    memory = server.memory(4096)
    one = given(memory, "IN", np.zeros(4, np.int32), "INT32")
    code = (
        "a = request.inputs()[0].as_numpy(); out = [a.shape, a.flags.writeable, a.tolist(), request.requested_output_names()]\n"
        "a.shape = (2, 2); self.all = [*getattr(self, 'all', []), a]; request.inputs().clear()"
    )
    for value in range(TIMES):
        memory.put(np.full(4, value, np.int32).tobytes(), one[4])
        assert read_text(server, obey(server, code, [one], [["OUT", 1, 2048, 200, True]])) == str([(4,), False, [value] * 4, {"OUT"}])
    assert kept(server) > 0
    seen = read_text(server, obey(server, "out = [len({id(a) for a in self.all}), {a.shape for a in self.all}]"))
    assert seen == str([TIMES, {(2, 2)}])


def test_its_number_is_its_own(start):  # noqa: F811
    server = start(OBEDIENT)
    numbers = []
    for _ in range(TIMES):
        answer = obey(server, "out = request.trace()._number")
        numbers.append(int(read_text(server, answer)))
    assert numbers == list(range(numbers[0], numbers[0] + TIMES))


def test_private_inputs_are_copies(start):  # noqa: F811
    server = start(OBEDIENT, ready=False)
    assert "ready" in server.initialize(config={"parameters": {"PRIVATE_INPUTS": {"string_value": "yes"}}})
    memory = server.memory(4096)
    one = given(memory, "IN", np.zeros(2, np.int32), "INT32")
    for _ in range(TIMES):
        assert read_text(server, obey(server, "a = request.inputs()[0].as_numpy(); a += 1; out = a.tolist()", [one])) == "[1, 1]"


@pytest.mark.parametrize("kept_array", ["a", "a[1:]", "a.reshape(2, 2)", "request.inputs()[0]", "request"])
def test_what_the_model_keeps_is_reported(start, kept_array):  # noqa: F811
    server = start(OBEDIENT)
    memory, other = server.memory(4096), server.memory(4096)
    one = given(memory, "IN", np.zeros(4, np.int32), "INT32")
    code = f"{COUNT}a = request.inputs()[0].as_numpy(); out = self.n\nif self.n == {TIMES}: self.kept = {kept_array}\n"
    for at in range(1, TIMES + 3):
        answer = obey(server, code, [one], [["OUT", other.segment, 0, 100, True]])
        assert answer.get("held", []) == ([memory.segment] if at == TIMES else []), at
        assert not answer.get("let_go")
    assert obey(server, "self.kept = a = None", outputs=[])["let_go"] == [memory.segment]


def test_an_output_in_place_that_the_model_keeps_is_reported(start):  # noqa: F811
    server = start(OBEDIENT)
    memory = server.memory(4096)
    code = (
        f"{COUNT}a = request.output_array('OUT', (4,), 'f4'); a[:] = self.n; ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', a)])]\n"
        f"if self.n == {TIMES}: self.kept = a\n"
        "else: del a"
    )
    for at in range(1, TIMES + 1):
        # The model's own names go with the next batch, so what is held then is what it keeps.
        answer = obey(server, code, [], [["OUT", memory.segment, 64, 16, True]])
        assert (placed(server, answer["responses"][0]["outputs"][0]) == at).all()
    assert obey(server, "self.kept = None", outputs=[])["let_go"] == [memory.segment]


@pytest.mark.parametrize("size", [0, 8], ids=["no place", "a place that is too small"])
def test_an_output_in_a_replaced_place_that_the_model_keeps_is_reported(start, size):  # noqa: F811
    server = start(OBEDIENT)
    small, large = server.memory(4096), server.memory(4096)
    server.on_need = lambda index, name, byte_size: {"at": [large.segment, 64, byte_size]}
    place = ["OUT", small.segment if size else None, 0, size, False]
    code = (
        f"{COUNT}a = request.output_array('OUT', (4,), 'f4'); a[:] = self.n; ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', a)])]\n"
        "if self.n == self.at: self.kept = a\n"
        "else: del a"
    )
    for at in (1, TIMES):
        obey(server, f"self.n, self.at = 0, {at}", [], [])
        for number in range(1, at + 1):
            answer = obey(server, code, [], [place])
            assert answer.get("held", []) == ([large.segment] if number == at else []), number
        assert obey(server, "self.kept = None", outputs=[])["let_go"] == [large.segment]


@pytest.mark.parametrize("further", ["request.output_array('OUT', (8,), 'f4')", "np.zeros(8, 'f4')"], ids=["in place", "copied"])
def test_an_output_in_a_place_that_was_replaced_later_is_reported(start, further):  # noqa: F811
    server = start(OBEDIENT)
    small, large = server.memory(4096), server.memory(4096)
    server.on_need = lambda index, name, byte_size: {"at": [large.segment, 64, byte_size]}
    code = (
        f"{COUNT}a = request.output_array('OUT', (4,), 'f4'); ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', {further})])]\n"
        "if self.n == self.at: self.kept = a\n"
        "else: del a"
    )
    for at in (1, TIMES):
        obey(server, f"self.n, self.at = 0, {at}", [], [])
        for number in range(1, at + 1):
            answer = obey(server, code, [], [["OUT", small.segment, 0, 16, False]])
            assert answer["responses"][0]["outputs"][0][3] == large.segment
            assert answer.get("held", []) == ([small.segment] if number == at else []), number
        assert obey(server, "self.kept = None", outputs=[])["let_go"] == [small.segment]


def test_outputs_may_differ_at_the_same_place(start):  # noqa: F811
    server = start(OBEDIENT)
    memory = server.memory(4096)
    code = (
        f"{COUNT}shape, dtype = [((4,), 'f4'), ((2, 2), 'f4'), ((4,), 'i4'), ((9,), 'f4'), ((0,), 'f4')][self.n % 5]\n"
        "ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.full(shape, self.n, dtype))])]"
    )
    expect = [("FP32", [4]), ("FP32", [2, 2]), ("INT32", [4]), ("FP32", [9]), ("FP32", [0])]
    for at in range(1, 4 * TIMES):
        (output,) = obey(server, code, [], [["OUT", memory.segment, 64, 16, True]])["responses"][0]["outputs"]
        assert (output[1], output[2]) == expect[at % 5]
        if at % 5 < 3:
            dtype = np.int32 if at % 5 == 2 else np.float32
            assert (placed(server, output, dtype) == at).all()
        else:
            assert output[3:] == ([None, 0, 36] if at % 5 == 3 else [memory.segment, 64, 0])


def test_a_place_that_was_replaced_is_asked_for_again(start):  # noqa: F811
    server = start(IDENTITY)
    memory = server.memory(1 << 16)
    requested = []

    def on_need(index, name, byte_size):
        requested.append((index, name, byte_size))
        return {"at": [memory.segment, 8192, byte_size]}

    server.on_need = on_need
    inputs = [given(memory, "IN", np.arange(100, dtype=np.float32))]
    for _ in range(TIMES):
        (output,) = server.execute(server.request(inputs, [["OUT", memory.segment, 4096, 8, False]]))["responses"][0]["outputs"]
        assert output[3:] == [memory.segment, 8192, 400]
    assert requested == [(0, "OUT", 400)] * TIMES


def test_what_the_server_forgets_is_unmapped(start):  # noqa: F811
    with open(guard_library(), "rb") as guard:
        server = start(IDENTITY, ready=False, guard=os.dup(guard.fileno()))
        assert server.initialize()["ready"]["guard"] is True
    regions = [server.memory(4096, is_region=True) for _ in range(2)]

    def mapped() -> int:
        with open(f"/proc/{server.process.pid}/maps") as file:
            return sum("memfd:test" in line for line in file)

    inputs = [[given(region, "IN", np.ones(4, np.float32))] for region in regions]
    for _ in range(TIMES):
        for one, region in zip(inputs, regions):
            server.execute(server.request(one, [["OUT", region.segment, 2048, 16, True]]))
    assert mapped() == 2
    server.send({"forget": [regions[0].segment]})
    for _ in range(TIMES):
        answer = server.execute(server.request(inputs[1], [["OUT", regions[1].segment, 2048, 16, True]]))
        assert "responses" in answer and not answer.get("held")
    # Another thread of the process unmaps it.
    assert_eventually(mapped, 1)
    server.send({"forget": [regions[1].segment]})
    server.exchange({"do": "ready"})
    assert_eventually(mapped, 0)


def test_a_region_that_is_lost_later_is_reported(start):  # noqa: F811
    with open(guard_library(), "rb") as guard:
        server = start(IDENTITY, ready=False, guard=os.dup(guard.fileno()))
        assert server.initialize()["ready"]["guard"] is True
    region = server.memory(4096, is_region=True)
    one = [given(region, "IN", np.ones(4, np.float32))], [["OUT", region.segment, 2048, 16, True]]
    for _ in range(TIMES):
        assert not server.execute(server.request(*one)).get("lost")
    os.truncate(region.descriptor, 0)
    for _ in range(2):
        # Its first byte is where an array begins; which one is touched first is the copy's affair.
        ((segment, _offset),) = server.execute(server.request(*one))["lost"]
        assert segment == region.segment


def test_few_requests_are_kept_and_no_long_ones(start):  # noqa: F811
    server = start(OBEDIENT)
    for at in range(1100):
        for _ in range(3):
            answer = obey(server, "out = 1", outputs=[], timeout=at)
            assert "responses" in answer
    assert 0 < kept(server) <= 512
    before = kept(server)
    for _ in range(TIMES):
        assert read_text(server, obey(server, "out = 1" + " " * 1024)) == "1"
    assert kept(server) <= before + 1
    # A request that never comes again is not kept.
    before = kept(server)
    for at in range(100):
        obey(server, "out = 1", outputs=[], timeout=10_000 + at)
    assert kept(server) <= before + 1


def test_a_process_that_the_model_forked_does_not_answer(start):  # noqa: F811
    server = start(OBEDIENT)
    for _ in range(TIMES):
        code = "pid = os.fork(); out = 'parent' if pid else 'child'\nif pid: assert os.waitpid(pid, 0)[1] == 0"
        assert read_text(server, obey(server, code)) == "parent"


class Overtaken(str):
    """A name. When it is looked up for the ``at``-th time, another thread runs ``other``, as far as it comes within a short time."""

    at = 0

    def __hash__(self) -> int:
        self.at -= 1
        if self.at == 0:
            self.thread = threading.Thread(target=self.other)
            self.thread.start()
            self.thread.join(0.2)
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("other", ["note", "drop"])
def test_arrays_that_two_threads_keep_or_drop_are_counted_once(other, at):
    memory = Memory()
    descriptors = [os.memfd_create("test") for _ in range(2)]
    for one in descriptors:
        os.truncate(one, 4096)
    memory.map([[1, 4096, 0, False], [2, 4096, 0, False]], descriptors)
    counts = [memory._uses[one][2] for one in (1, 2)]
    request = {"inputs": [("IN", "FP32", (4,), 1, 0, 16)], "outputs": [["OUT", 2, 0, 16, True]]}
    prepared = Prepared(request)
    prepared.make(request, memory)

    def note(name: str) -> None:
        prepared.note(np.ndarray((4,), np.float32, memory[2], 0), (name, "FP32", (4,), 2, 0, 16))

    name = Overtaken("OUT")
    name.other, name.at = {"note": lambda: note("OUT"), "drop": prepared.drop}[other], at
    note(name)
    name.thread.join()
    if other == "note":
        assert [memory._uses[one][2] - count for one, count in zip((1, 2), counts)] == [1, 1]
        kept = np.ndarray((4,), np.float32, memory[2], 0)
        assert memory.kept([], [2])[0] == [2]
        del kept
    prepared.drop()
    assert [memory._uses[one][2] for one in (1, 2)] == counts
    assert not memory._any_in_use([1, 2])
