"""Does a registered region do all that clients expect of it?"""

import concurrent.futures
import contextlib
import http.client
import mmap
import time

import numpy as np
import pytest
from catalogue import SLOW_MS
from clients import Given, HttpClient, Refused, RequestedOutput, differs, fp32, http_call, http_infer, int32, open_client, refuses, text
from meanwhile import Delay, again_if_too_late
from regions import fresh_name, region, registered

PAGE = mmap.PAGESIZE


def test_register_status_unregister(client):
    name = fresh_name()
    with region(4 * PAGE) as made:
        client.register_system(name, made.key, 3 * PAGE, offset=PAGE)
        entry = {"name": name, "key": made.key, "offset": PAGE, "byte_size": 3 * PAGE}
        assert client.status("system", name) == [entry]
        assert entry in client.status("system")
        client.unregister("system", name)
        assert entry not in client.status("system")
        with refuses("NOT_FOUND", f"Unable to find system shared memory region: '{name}'"):
            client.status("system", name)


@pytest.mark.parametrize("client", ["http"], indirect=True)
def test_status_over_http_has_ordered_keys_and_its_content_type(server, client):
    with registered(client, 64) as made:
        answer = http_call(server.http, "GET", f"/v2/systemsharedmemory/region/{made.name}/status").ok()
        assert list(answer.json[0]) == ["name", "key", "offset", "byte_size"]
        assert answer.headers["content-type"] == "application/json"


def test_no_regions_is_an_empty_list(client):
    client.unregister("system")
    client.unregister("cuda")
    assert client.status("system") == client.status("cuda") == []


def test_status_is_sorted_by_name(client):
    with registered(client, 64, name="b_region"), registered(client, 64, name="a_region"):
        assert [one["name"] for one in client.status("system")] == ["a_region", "b_region"]


def test_unregister_all_takes_every_system_region(client):
    with registered(client, 64), registered(client, 64):
        client.unregister("system")
        assert client.status("system") == []


def test_unregistering_the_unknown_succeeds(client):
    client.unregister("system", fresh_name())
    client.unregister("cuda", fresh_name())


def test_unregistering_as_the_other_kind_does_nothing(client):
    with registered(client, 64) as made:
        client.unregister("cuda", made.name)
        client.unregister("cuda")
        assert client.status("system", made.name)


def test_a_region_outlives_the_connection_and_crosses_protocols(server, client):
    with registered(client, 64, fp32("", range(16)).raw) as made:
        for protocol in ("http", "grpc"):
            with open_client(protocol, server) as other:
                given = Given("INPUT0", "FP32", [16], region=(made.name, 64, 0))
                assert other.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == made.read(64)


def test_input_and_output_by_region(client):
    values = np.arange(16, dtype=np.int32)
    content = values.tobytes() + np.full(16, 3, np.int32).tobytes()
    with registered(client, 128, content) as source, registered(client, 128) as target:
        inputs = [Given(f"INPUT{i}", "INT32", [1, 16], region=(source.name, 64, 64 * i)) for i in range(2)]
        outputs = [RequestedOutput(f"OUTPUT{i}", (target.name, 64, 64 * i)) for i in range(2)]
        reply = client.infer("simple", inputs, outputs)
        assert {name: (one.datatype, one.shape, one.raw) for name, one in reply.outputs.items()} == {
            "OUTPUT0": ("INT32", [1, 16], None),
            "OUTPUT1": ("INT32", [1, 16], None),
        }
        assert target.read(64) == (values + 3).tobytes()
        assert target.read(64, 64) == (values - 3).tobytes()


def test_a_reply_with_only_region_outputs_is_plain_json(server):
    client = HttpClient(server.http)
    with registered(client, 64, bytes(64)) as made:
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


def test_one_region_for_input_and_output(client):
    with registered(client, 64, fp32("", range(16)).raw) as made:
        where = (made.name, 64, 0)
        client.infer("identity_fp32", [Given("INPUT0", "FP32", [16], region=where)], [RequestedOutput("OUTPUT0", where)])
        assert made.read(64) == fp32("", range(16)).raw


def test_regions_and_inline_tensors_mix(client):
    strings, numbers = text("INPUT1", [b"one", b""]), int32("INPUT2", [7, 8, 9])
    with registered(client, 64, fp32("", [1.5, 2.5]).raw) as source, registered(client, 64) as target:
        inputs = [Given("INPUT0", "FP32", [2], region=(source.name, 8, 0)), strings, numbers]
        outputs = [RequestedOutput("OUTPUT0"), RequestedOutput("OUTPUT1", (target.name, 64, 0)), RequestedOutput("OUTPUT2")]
        reply = client.infer("mixed", inputs, outputs)
        assert reply.outputs["OUTPUT0"].raw == source.read(8)
        assert reply.outputs["OUTPUT2"].raw == numbers.raw
        assert reply.outputs["OUTPUT1"].raw is None
        assert target.read(len(strings.raw)) == strings.raw


def test_a_larger_output_window_keeps_its_rest(client):
    with registered(client, 64, b"\xaa" * 64) as target:
        client.infer("identity_fp32", [fp32("INPUT0", [1, 2])], [RequestedOutput("OUTPUT0", (target.name, 64, 0))])
        assert target.read(64) == fp32("", [1, 2]).raw + b"\xaa" * 56


@differs("2.51 maps from the start of the object: it reads at the wrong place, or beyond the mapping and dies", run=False)
def test_a_window_at_a_registered_offset(client):
    with region(2 * PAGE) as made:
        made.write(fp32("", [5, 6]).raw, PAGE + 8)
        name = fresh_name()
        client.register_system(name, made.key, PAGE, offset=PAGE)
        try:
            given = Given("INPUT0", "FP32", [2], region=(name, 8, 8))
            client.infer("identity_fp32", [given], [RequestedOutput("OUTPUT0", (name, 8, 16))])
            assert made.read(8, PAGE + 16) == fp32("", [5, 6]).raw
        finally:
            client.unregister("system", name)


def test_what_the_client_writes_between_requests_is_seen(client):
    with registered(client, 64) as made:
        given = Given("INPUT0", "FP32", [2], region=(made.name, 8, 0))
        for value in range(3):
            made.write(fp32("", [value, -value]).raw)
            assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == made.read(8)


def test_registering_again_after_unregistering(client):
    name = fresh_name()
    for size in (64, 128):
        with region(size) as made:
            client.register_system(name, made.key, size)
            assert client.status("system", name)[0]["byte_size"] == size
            client.unregister("system", name)


def test_an_unlinked_object_stays_usable(client):
    with registered(client, 64, fp32("", [3]).raw) as made:
        made.path.unlink()
        given = Given("INPUT0", "FP32", [1], region=(made.name, 4, 0))
        assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == fp32("", [3]).raw


def test_many_regions_at_once(client):
    with region(64, fp32("", [1]).raw) as made:
        names = [fresh_name() for _ in range(200)]
        # One region per object and name: 2.51 cannot register one key string twice.
        others = [region(64, fp32("", [number]).raw) for number in range(200)]
        held = [other.__enter__() for other in others]
        try:
            for name, one in zip(names, held):
                client.register_system(name, one.key, 64)
            for number, name in list(enumerate(names))[::20]:
                given = Given("INPUT0", "FP32", [1], region=(name, 4, 0))
                assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == fp32("", [number]).raw
        finally:
            for name in names:
                client.unregister("system", name)
            for other in others:
                other.__exit__(None, None, None)
        assert made.read(4)


def test_a_classification_output_cannot_go_to_a_region(client):
    first = "Output" if client.protocol == "http" else "output"
    with registered(client, 64) as made:
        requested = RequestedOutput("OUTPUT0", (made.name, 64, 0), {"classification": 1})
        with refuses("INVALID_ARG", f"{first} can't set both 'shared_memory_region' and 'classification'"):
            client.infer("classes", [fp32("INPUT0", [[1, 2, 3, 4]])], [requested])


@contextlib.contextmanager
def in_flight(server, client, made):
    """A request to the slow model holds a region while the block runs; a block that takes longer is done again."""
    given = Given("INPUT0", "FP32", [4], region=(made.name, 16, 0))
    requested = [RequestedOutput("OUTPUT0", (made.name, 16, 16))]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        delay = Delay(SLOW_MS)
        running = pool.submit(client.infer, "slow_fp32", [given], requested)
        delay.wait_for_requests(server, "slow_fp32")
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
def test_unregistering_in_flight_succeeds_and_takes_effect_at_the_end(server, client):
    content = fp32("", [1, 2, 3, 4]).raw
    with registered(client, 64, content) as made:
        with in_flight(server, client, made):
            client.unregister("system", made.name)
            # Still there for the request that uses it.
            assert client.status("system", made.name)
        with refuses("NOT_FOUND", f"Unable to find system shared memory region: '{made.name}'"):
            wait_gone(client, made.name)
        assert made.read(16, 16) == content


@differs(IN_USE)
@again_if_too_late
def test_unregistering_all_in_flight_succeeds(server, client):
    content = fp32("", [1, 2, 3, 4]).raw
    with registered(client, 64, content) as made:
        with in_flight(server, client, made):
            client.unregister("system")
        with refuses("NOT_FOUND", f"Unable to find system shared memory region: '{made.name}'"):
            wait_gone(client, made.name)
        assert made.read(16, 16) == content


@differs(IN_USE)
@again_if_too_late
def test_a_new_region_takes_the_name_of_one_that_is_leaving(server, client):
    """Newer Triton refuses the name until the last request is done; steady traffic would keep it for ever."""
    old, new = fp32("", [1, 2, 3, 4]).raw, fp32("", [9]).raw
    with registered(client, 64, old) as made, region(64, new) as other:
        with in_flight(server, client, made):
            client.unregister("system", made.name)
            client.register_system(made.name, other.key, 64)
            given = Given("INPUT0", "FP32", [1], region=(made.name, 4, 0))
            assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == new
        assert made.read(16, 16) == old
        assert client.status("system", made.name)[0]["key"] == other.key


def wait_gone(client, name: str) -> None:
    """The reply may reach the client a moment before the last reference is dropped."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        client.status("system", name)
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
