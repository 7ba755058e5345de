"""Does a registered region do all that clients expect of it?"""

import concurrent.futures
import contextlib
import http.client
import mmap
import time

import numpy as np
import pytest
from catalogue import SLOW_MS
from doors import Asked, Given, HttpDoor, Refused, differs, fp32, http_call, http_infer, int32, open_door, refuses, text
from meanwhile import Delay, again_if_too_late
from regions import fresh_name, region, registered

PAGE = mmap.PAGESIZE


def test_register_status_unregister(door):
    name = fresh_name()
    with region(4 * PAGE) as made:
        door.register_system(name, made.key, 3 * PAGE, offset=PAGE)
        entry = {"name": name, "key": made.key, "offset": PAGE, "byte_size": 3 * PAGE}
        assert door.status("system", name) == [entry]
        assert entry in door.status("system")
        door.unregister("system", name)
        assert entry not in door.status("system")
        with refuses("NOT_FOUND", f"Unable to find system shared memory region: '{name}'"):
            door.status("system", name)


def test_status_over_http_has_ordered_keys_and_its_content_type(server, door):
    if door.protocol != "http":
        pytest.skip("about HTTP")
    with registered(door, 64) as made:
        answer = http_call(server.http, "GET", f"/v2/systemsharedmemory/region/{made.name}/status").ok()
        assert list(answer.json[0]) == ["name", "key", "offset", "byte_size"]
        assert answer.headers["content-type"] == "application/json"


def test_no_regions_is_an_empty_list(door):
    door.unregister("system")
    door.unregister("cuda")
    assert door.status("system") == door.status("cuda") == []


def test_status_is_sorted_by_name(door):
    with registered(door, 64, name="b_region"), registered(door, 64, name="a_region"):
        assert [one["name"] for one in door.status("system")] == ["a_region", "b_region"]


def test_unregister_all_takes_every_system_region(door):
    with registered(door, 64), registered(door, 64):
        door.unregister("system")
        assert door.status("system") == []


def test_unregistering_the_unknown_succeeds(door):
    door.unregister("system", fresh_name())
    door.unregister("cuda", fresh_name())


def test_unregistering_as_the_other_kind_does_nothing(door):
    with registered(door, 64) as made:
        door.unregister("cuda", made.name)
        door.unregister("cuda")
        assert door.status("system", made.name)


def test_a_region_outlives_the_connection_and_crosses_protocols(server, door):
    with registered(door, 64, fp32("", range(16)).raw) as made:
        for protocol in ("http", "grpc"):
            with open_door(protocol, server) as other:
                given = Given("INPUT0", "FP32", [16], region=(made.name, 64, 0))
                assert other.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == made.read(64)


def test_input_and_output_by_region(door):
    values = np.arange(16, dtype=np.int32)
    content = values.tobytes() + np.full(16, 3, np.int32).tobytes()
    with registered(door, 128, content) as source, registered(door, 128) as target:
        inputs = [Given(f"INPUT{i}", "INT32", [1, 16], region=(source.name, 64, 64 * i)) for i in range(2)]
        outputs = [Asked(f"OUTPUT{i}", (target.name, 64, 64 * i)) for i in range(2)]
        reply = door.infer("simple", inputs, outputs)
        assert {name: (one.datatype, one.shape, one.raw) for name, one in reply.outputs.items()} == {
            "OUTPUT0": ("INT32", [1, 16], None),
            "OUTPUT1": ("INT32", [1, 16], None),
        }
        assert target.read(64) == (values + 3).tobytes()
        assert target.read(64, 64) == (values - 3).tobytes()


def test_a_reply_with_only_region_outputs_is_plain_json(server):
    door = HttpDoor(server.http)
    with registered(door, 64, bytes(64)) as made:
        document = {
            "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "parameters": {
                "shared_memory_region": made.name, "shared_memory_byte_size": 16}}],
            "outputs": [{"name": "OUTPUT0", "parameters": {
                "shared_memory_region": made.name, "shared_memory_byte_size": 16, "shared_memory_offset": 16,
                "binary_data": False}}],
        }  # fmt: skip
        answer = http_infer(server.http, "identity_fp32", document).ok()
        assert answer.headers["content-type"] == "application/json"
        assert "inference-header-content-length" not in answer.headers
        assert answer.json["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [4]}]


def test_one_region_for_input_and_output(door):
    with registered(door, 64, fp32("", range(16)).raw) as made:
        where = (made.name, 64, 0)
        door.infer("identity_fp32", [Given("INPUT0", "FP32", [16], region=where)], [Asked("OUTPUT0", where)])
        assert made.read(64) == fp32("", range(16)).raw


def test_regions_and_inline_tensors_mix(door):
    strings, numbers = text("INPUT1", [b"one", b""]), int32("INPUT2", [7, 8, 9])
    with registered(door, 64, fp32("", [1.5, 2.5]).raw) as source, registered(door, 64) as target:
        inputs = [Given("INPUT0", "FP32", [2], region=(source.name, 8, 0)), strings, numbers]
        outputs = [Asked("OUTPUT0"), Asked("OUTPUT1", (target.name, 64, 0)), Asked("OUTPUT2")]
        reply = door.infer("mixed", inputs, outputs)
        assert reply.outputs["OUTPUT0"].raw == source.read(8)
        assert reply.outputs["OUTPUT2"].raw == numbers.raw
        assert reply.outputs["OUTPUT1"].raw is None
        assert target.read(len(strings.raw)) == strings.raw


def test_a_larger_output_window_keeps_its_rest(door):
    with registered(door, 64, b"\xaa" * 64) as target:
        door.infer("identity_fp32", [fp32("INPUT0", [1, 2])], [Asked("OUTPUT0", (target.name, 64, 0))])
        assert target.read(64) == fp32("", [1, 2]).raw + b"\xaa" * 56


@differs("2.51 maps from the start of the object: it reads at the wrong place, or beyond the mapping and dies", run=False)
def test_a_window_at_a_registered_offset(door):
    with region(2 * PAGE) as made:
        made.write(fp32("", [5, 6]).raw, PAGE + 8)
        name = fresh_name()
        door.register_system(name, made.key, PAGE, offset=PAGE)
        try:
            given = Given("INPUT0", "FP32", [2], region=(name, 8, 8))
            door.infer("identity_fp32", [given], [Asked("OUTPUT0", (name, 8, 16))])
            assert made.read(8, PAGE + 16) == fp32("", [5, 6]).raw
        finally:
            door.unregister("system", name)


def test_what_the_client_writes_between_requests_is_seen(door):
    with registered(door, 64) as made:
        given = Given("INPUT0", "FP32", [2], region=(made.name, 8, 0))
        for value in range(3):
            made.write(fp32("", [value, -value]).raw)
            assert door.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == made.read(8)


def test_registering_again_after_unregistering(door):
    name = fresh_name()
    for size in (64, 128):
        with region(size) as made:
            door.register_system(name, made.key, size)
            assert door.status("system", name)[0]["byte_size"] == size
            door.unregister("system", name)


def test_an_unlinked_object_stays_usable(door):
    with registered(door, 64, fp32("", [3]).raw) as made:
        made.path.unlink()
        given = Given("INPUT0", "FP32", [1], region=(made.name, 4, 0))
        assert door.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == fp32("", [3]).raw


def test_many_regions_at_once(door):
    with region(64, fp32("", [1]).raw) as made:
        names = [fresh_name() for _ in range(200)]
        # One region per object and name: 2.51 cannot register one key string twice.
        others = [region(64, fp32("", [number]).raw) for number in range(200)]
        held = [other.__enter__() for other in others]
        try:
            for name, one in zip(names, held):
                door.register_system(name, one.key, 64)
            for number, name in list(enumerate(names))[::20]:
                given = Given("INPUT0", "FP32", [1], region=(name, 4, 0))
                assert door.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == fp32("", [number]).raw
        finally:
            for name in names:
                door.unregister("system", name)
            for other in others:
                other.__exit__(None, None, None)
        assert made.read(4)


def test_a_classification_output_cannot_go_to_a_region(door):
    first = "Output" if door.protocol == "http" else "output"
    with registered(door, 64) as made:
        asked = Asked("OUTPUT0", (made.name, 64, 0), {"classification": 1})
        with refuses("INVALID_ARG", f"{first} can't set both 'shared_memory_region' and 'classification'"):
            door.infer("classes", [fp32("INPUT0", [[1, 2, 3, 4]])], [asked])


@contextlib.contextmanager
def in_flight(server, door, made):
    """A request to the slow model holds a region while the block runs; a block that takes longer is done again."""
    given = Given("INPUT0", "FP32", [4], region=(made.name, 16, 0))
    asked = [Asked("OUTPUT0", (made.name, 16, 16))]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        delay = Delay(SLOW_MS)
        running = pool.submit(door.infer, "slow_fp32", [given], asked)
        delay.reaches(server, "slow_fp32")
        try:
            yield
        except (Refused, AssertionError):
            delay.must_last()
            raise
        delay.must_last()
        running.result()


IN_USE = "2.51 answers 500 `Cannot unregister shared memory region …, it is currently in use.`"


@differs(IN_USE)
@again_if_too_late
def test_unregistering_in_flight_succeeds_and_takes_effect_at_the_end(server, door):
    content = fp32("", [1, 2, 3, 4]).raw
    with registered(door, 64, content) as made:
        with in_flight(server, door, made):
            door.unregister("system", made.name)
            # Still there for the request that uses it.
            assert door.status("system", made.name)
        with refuses("NOT_FOUND", f"Unable to find system shared memory region: '{made.name}'"):
            wait_gone(door, made.name)
        assert made.read(16, 16) == content


@differs(IN_USE)
@again_if_too_late
def test_unregistering_all_in_flight_succeeds(server, door):
    content = fp32("", [1, 2, 3, 4]).raw
    with registered(door, 64, content) as made:
        with in_flight(server, door, made):
            door.unregister("system")
        with refuses("NOT_FOUND", f"Unable to find system shared memory region: '{made.name}'"):
            wait_gone(door, made.name)
        assert made.read(16, 16) == content


@differs(IN_USE)
@again_if_too_late
def test_a_new_region_takes_the_name_of_one_that_is_leaving(server, door):
    """Newer Triton refuses the name until the last request is done; steady traffic would keep it for ever."""
    old, new = fp32("", [1, 2, 3, 4]).raw, fp32("", [9]).raw
    with registered(door, 64, old) as made, region(64, new) as other:
        with in_flight(server, door, made):
            door.unregister("system", made.name)
            door.register_system(made.name, other.key, 64)
            given = Given("INPUT0", "FP32", [1], region=(made.name, 4, 0))
            assert door.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == new
        assert made.read(16, 16) == old
        assert door.status("system", made.name)[0]["key"] == other.key


def wait_gone(door, name: str) -> None:
    """The reply may reach the client a moment before the last reference is dropped."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        door.status("system", name)
        time.sleep(0.01)


def test_a_body_that_a_call_has_no_use_for_costs_no_connection(server):
    """Sent after the headers, as many clients do, and so perhaps after the server knows its answer."""
    with contextlib.closing(http.client.HTTPConnection(server.http)) as connection:
        connection.connect()
        kept = connection.sock
        for verb in ["region/nobody/unregister"] * 100 + ["unregister"] * 3:
            connection.request("POST", f"/v2/systemsharedmemory/{verb}", b"{}")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        assert connection.sock is kept
