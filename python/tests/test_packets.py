"""Are the packets in tests/packets what the modules of a Python model's process read and write?"""

import json
import pathlib
import socket
import struct

import pytest

from nerite.model import packed, packets
from nerite.model.channel import Channel

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "packets"
MODEL: packets.Model = {
    "name": "m",
    "version": "1",
    "file": "model.py",
    "version_dir": "/models/m/1",
    "model_dir": "/models/m",
    "instance": "m",
    "title": "nerite: model m",
}
FIRST = {
    "number": 41,
    "id": 'größe "1"',
    "rows": 2,
    "correlation": 7,
    "flags": 1,
    "timeout": 500,
    "parameters": {"double": 0.5, "flag": True, "int": -7, "text": "a\nb"},
    "inputs": [["IN", "FP32", [2, 3], 5, 64, 24], ["TEXT", "BYTES", [1], 6, 0, 9], ["NONE", "UINT8", [0], None, 0, 0]],
    "outputs": [["OUT", 5, 128, 24, True], ["KNOWN", 6, 0, 4096, False], ["NEW", None, 0, 0, False]],
}
SECOND = {
    "number": 42,
    "id": "",
    "rows": 0,
    "correlation": "sequence",
    "flags": 2,
    "timeout": 0,
    "parameters": {},
    "inputs": [],
    "outputs": [],
}
EXECUTED = {
    "responses": [
        {
            "outputs": [["OUT", "FP32", [2, 3], 5, 128, 24], ["NONE", "UINT8", [0], None, 0, 0]],
            "parameters": {"key": "value"},
        },
        {"error": ["NOT_FOUND", "gone"]},
    ],
    "lost": [[5, 4096]],
    "held": [6],
    "let_go": [7, 8],
    "unmapped": [10],
}
PACKED = {
    "responses": [
        {"outputs": [("OUT", "FP32", (2, 3), 5, 128, 24), ("NONE", "UINT8", (0,), None, 0, 0)]},
        {"outputs": [("OUT", "FP32", (2, 3), 5, 128, 24)], "parameters": {"key": "value"}},
        {"error": ("NOT_FOUND", "gone")},
    ],
    "lost": [[5, 4096]],
    "held": [6],
    "let_go": [7, 8],
    "unmapped": [10],
}
# What a traced request's process tells other systems.
SPAN = {"traceparent": f"00-{'1a' * 16}-{'2b' * 8}-01", "tracestate": 'vendor="x"'}

PACKETS = {
    "greeting": {"modules": {"m": 'x = "1"\n', "m.stub": "def run(): pass"}, "main": "m.stub"},
    "complete": {"do": "complete", "config": {"name": "m", "max_batch_size": 8}, "model": MODEL},
    "initialize": {
        "do": "initialize",
        "args": {"model_config": '{"name":"m"}', "model_instance_kind": "CPU"},
        "model": {**MODEL, "instance": "m_0", "title": "nerite: model m_0"},
        "decoupled": False,
    },
    "initialize_debugged": {
        "do": "initialize",
        "args": {"model_config": '{"name":"m"}', "model_instance_kind": "CPU"},
        "model": {**MODEL, "instance": "m_0", "title": "nerite: model m_0"},
        "decoupled": False,
        "debug": 5678,
    },
    "execute": {
        "do": "execute",
        "requests": [FIRST, SECOND],
        "map": [[5, 8192, 4096, True], [6, 4096, 0, False], [7, 4096, 0, True, 1], [8, 4096, 0, False, "private"]],
        "forget": [3, 4],
    },
    "execute_again": {
        "do": "execute",
        "requests": [{**SECOND, "number": 43, "rows": 1, "correlation": 0, "flags": 0, "asks": True}],
        "map": [],
        "forget": [],
    },
    "execute_traced": {
        "do": "execute",
        "requests": [{**SECOND, "number": 44, "rows": 1, "correlation": 0, "flags": 0, "trace": SPAN}],
        "map": [],
        "forget": [],
    },
    "initialize_template": {
        "do": "initialize",
        "args": {"model_config": '{"name":"m"}', "model_instance_kind": "CPU"},
        "model": {**MODEL, "instance": "m"},
        "decoupled": False,
        "template": True,
    },
    "fork": {"do": "fork"},
    "forked": {"forked": 4711},
    "reap": {"do": "reap", "pid": 4711},
    "reaped": {"reaped": 9},
    "ready": {"do": "ready"},
    "finalize": {"do": "finalize"},
    "completed": {"config": {"max_batch_size": 8, "name": "m"}},
    "initialized": {"ready": {"python": "3.11.2", "numpy": "1.24.2", "guard": True}},
    "initialized_importing": {
        "ready": {
            "python": "3.11.2", "numpy": "1.24.2", "guard": True, "decides": True,
            "imported": [["/srv/größe.py", 120, 1700000000123456789], ["/srv/lib/\"b\".py", 0, 0]], "unreported": 3,
        }
    },
    "initialized_deciding": {"ready": {"python": "3.11.2", "numpy": "1.24.2", "guard": True, "decides": True}},
    "executed": EXECUTED,
    "is_ready": {"is_ready": True},
    "done": {"done": True},
    "failed": {"error": 'ValueError: größer als "1"'},
    "need": {"need": [1, "NEW", 5000]},
    "room": {"at": [9, 0, 8192], "map": [[9, 8192, 0, False]]},
    "no_room": {"error": "output 'OUT': no memory is left"},
    "forget": {"forget": [5]},
    "initialized_isolated": {"ready": {"guard": True}},
    "executed_isolated": {
        "responses": [{"failed": ["UNAVAILABLE", "no memory"]}],
        "executions": [[1, 10, 200, 30]],
        "copied": {"convert": 12},
    },
    "failed_isolated": {"error": ["INVALID_ARG", "unexpected shape"]},
    "long": packets.long(70000),
    "log": {"log": ["WARNING", 'it is "late"'], "at": ["model.py", 12]},
    "log_of_run": {"log": ["WARNING", 'it is "late"'], "at": ["model.py", 12], "of": 41},
    "is_cancelled": {"cancelled": 41},
    "cancelled": {"cancelled": False},
    "let_go": {"let_go": [6, 7]},
    "metric_family": {"metric_family": ["cats", 'Cats "seen"', "COUNTER"]},
    "metric": {"metric": [3, {"a": "1"}, ["0.1", "inf"]]},
    "measure": {"measure": [4, "increment", "2.5"]},
    "unmeasured": {"unmeasured": [3]},
    "measured_number": {"number": 3},
    "measured": {"value": "2.5"},
    "not_measured": {"error": "Invalid metric name"},
    "respond": {
        "call": 3,
        "respond": 41,
        "final": False,
        "response": {"outputs": [["OUT", "FP32", [2, 3], 5, 128, 24]], "parameters": {"key": "value"}},
        "lost": [[5, 4096]],
    },
    "ended": {"respond": 41, "final": True},
    "places": {"call": 3, "outputs": [["OUT", 5, 128, 24, True], ["NEW", None, 0, 0, False]], "map": [[9, 8192, 0, False]]},
    "over": {"call": 3, "over": True},
    "place": {"call": 4, "place": [41, "NEW", 5000]},
    "place_found": {"call": 4, "at": [9, 0, 8192], "map": [[9, 8192, 0, False]]},
    "no_place": {"call": 4, "error": "output 'OUT': no memory is left"},
    "release": {"release": 41, "held": [6], "let_go": [7]},
    "space": {"call": 5, "space": 4096},
    "infer": {
        "call": 6,
        "infer": {
            "model": "other",
            "version": -1,
            "id": "mine",
            "correlation": 7,
            "flags": 1,
            "timeout": 500,
            "parameters": {"key": "value"},
            "inputs": [["IN", "FP32", [2, 3], 5, 64, 24], ["NONE", "UINT8", [0], None, 0, 0]],
            "wanted": ["OUT"],
            "decoupled": True,
            "waits": True,
        },
    },
    "unknown": {"call": 6, "unknown": True},
    "answered": {
        "call": 6,
        "final": False,
        "response": {"outputs": [["OUT", "FP32", [2, 3], 9, 0, 24]], "parameters": {"key": "value"}},
        "own": [9],
        "map": [[9, 8192, 0, False]],
    },
    "answered_error": {"call": 6, "final": True, "response": {"error": ["INTERNAL", "no way"]}, "own": [], "map": []},
    "answered_end": {"call": 6, "final": True, "own": [], "map": []},
    "taken": {"taken": 6},
    "cancel": {"cancel": 6},
    "waits": {"waits": 6},
    "load": {"call": 7, "load": ["other", "{}", [["1/model.py", 9, 0, 24]]]},
    "unload": {"call": 7, "unload": ["other", True]},
    "is_model_ready": {"call": 7, "is_ready": ["other", 2]},
    "readiness": {"call": 8, "readiness": False},
    "run_again": {"call": 9, "again": [41, 42]},
    "did": {"call": 7, "done": True},
    # For isolated models.
    "gone": {"gone": 41},
    "responded": {"responded": [3, "fail", 1700, None, 1900]},
    "memory": {"memory": [["CPU", 0, 1020], ["GPU", 1, 1023]]},
}


def golden(name: str) -> bytes:
    return (FOLDER / f"{name}.json").read_bytes()


@pytest.mark.parametrize("name", list(PACKETS))
def test_a_packet_is_read_and_written_as_it_is_there(name):
    assert packets.read(golden(name)) == PACKETS[name]
    assert packets.written(PACKETS[name]) == golden(name)


def test_every_packet_of_the_folder_has_a_test():
    assert {one.stem for one in FOLDER.glob("*.json")} == set(PACKETS)
    assert {one.stem for one in FOLDER.glob("*.bin")} == {"execute", "execute_again", "execute_traced", "executed"}


def packed_golden(name: str) -> bytes:
    return (FOLDER / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", ["execute", "execute_again", "execute_traced"])
@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_packed_batch_says_the_same_as_one_in_json(name, times):
    # The second time its layout is known, and then the whole request.
    for _ in range(times):
        read = packed.read(memoryview(packed_golden(name)))
    for request in read["requests"]:
        request.pop("prepared", None)
    assert {"map": [], "forget": [], **json.loads(json.dumps(read))} == json.loads(golden(name))


def test_the_answer_to_a_batch_is_packed_as_it_is_there():
    assert packed.executed(PACKED) == packed_golden("executed")
    assert packed.executed(PACKED) == packed_golden("executed")


ONE_OUTPUT = {"outputs": [("OUT", "FP32", (2,), 5, 64, 8)]}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"lost": [[5, 64]]},
        {"responses": [ONE_OUTPUT, ONE_OUTPUT]},
        {"responses": [{**ONE_OUTPUT, "parameters": {"a": 1}}]},
        {"responses": [{"outputs": [("OUT", "FP32", (2,), 5, 72, 8)]}]},
        {"responses": [{"outputs": []}]},
        {"responses": [None]},
    ],
)
def test_only_an_equal_answer_is_sent_from_those_that_are_kept(more):
    answer = {"responses": [ONE_OUTPUT], **more}
    whole = packed._encoded(answer)
    for _ in range(2):
        assert packed.executed({"responses": [ONE_OUTPUT]}) == packed._encoded({"responses": [ONE_OUTPUT]})
        assert packed.executed(answer) == whole


def test_layouts_that_always_differ_are_not_kept_for_ever():
    for length in range(2 * packed.LAYOUTS_MAX):
        packed.executed({"responses": [{"outputs": [("OUT", "FP32", (length,), 5, 0, 0)]}]})
        name = b"%04d" % length
        layout = struct.pack("<II", 0, 1) + struct.pack("<II", 4, 1) + name
        request = struct.pack("<QQQIIII", 1, 0, 0, 1, 0, len(layout), 0) + layout + bytes(24)
        assert packed.read(struct.pack("<III", 1, 1, 0) + request)["requests"][0]["outputs"] == [[name.decode(), None, 0, 0, True]]
    assert all(0 < len(kept) <= packed.LAYOUTS_MAX for kept in (packed._heads, packed._answers, packed._layouts))


def test_the_channel_sends_and_receives_these_bytes():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        Channel(ours).send(EXECUTED)
        assert theirs.recv(1 << 16) == golden("executed")
        theirs.send(golden("execute"))
        assert Channel(ours).receive() == (PACKETS["execute"], [])
        theirs.send(packed_golden("execute"))
        assert Channel(ours).receive() == (packed.read(packed_golden("execute")), [])


def test_the_parts_of_a_packet_are_at_their_positions():
    assert FIRST["inputs"][0][packets.TENSOR_SEGMENT] == FIRST["outputs"][0][packets.PLACE_SEGMENT] == 5
    assert packets.long_bytes(packets.read(golden("long"))) == 70000
    assert packets.long_bytes(packets.read(golden("done"))) is None


def test_half_a_surrogate_pair_is_no_reason_to_fail():
    assert packets.written({"error": "\ud800"}) == b'{"error":"?"}'
