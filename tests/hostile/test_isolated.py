"""Do isolated models cost nobody anything but the requests that their own process had when it died?"""

import concurrent.futures
import functools
import os
import platform
import signal
import time

import region_faults
import numpy as np
import pytest
from clients import Given, Refused, RequestedOutput, int32, refuses
from isolation import GRAPHS, all_witnesses, process_of, serving_isolated
from meanwhile import TRIES
from passages import SIZE, check_lost, lost, memory_of, through
from pythons import (
    baseline_of,
    check_children_end,
    check_left,
    check_no_memory_of_clients,
    each_is_answered_again,
    living,
    mapped_by_children,
    processes_of,
    state_of,
)
from test_copies import SIDE, WRITTEN_AFTER_S, copied, copying
from witness import MADE, any_client, comes_to, lent, torn, with_each_protocol

COUNT = SIZE // 4
REQUESTS = 20

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def victim(launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("2.51 has no isolated models")
    with serving_isolated(launcher, "isolated", tmp_path_factory.mktemp("isolated") / "socket") as found:
        yield found


@pytest.fixture(scope="module")
def baseline(victim):
    """Taken before the first test, and checked after the last."""
    found = baseline_of(victim)
    yield found
    check_left(victim, found)


@pytest.fixture
def others_are_spared(victim, baseline):
    """Everybody who asks another model has byte-exact answers, from the same process before and after."""
    MADE.clear()
    spared = process_of(victim, "iso_witness")
    with all_witnesses(victim) as found:
        yield found
        each_is_answered_again(found)
    assert process_of(victim, "iso_witness") == spared, "the process of another model was replaced"
    # What died comes to life again, after a pause if processes were killed before they had answered.
    comes_to(lambda: len(living(victim)), len(GRAPHS))
    for model in GRAPHS:
        process_of(victim, model)
    assert processes_of(victim.pid) == living(victim), "a dead process was not waited for"
    check_no_memory_of_clients(victim)


@pytest.fixture
def nobody_dies(others_are_spared, victim):
    before = processes_of(victim.pid)
    yield
    assert processes_of(victim.pid) == before, f"a model's process died:\n{victim.log_text()[-3000:]}"


@pytest.fixture(params=["region", "lease"])
def memory(request: pytest.FixtureRequest, victim, client):
    with memory_of(request.param, client, victim) as make:
        yield make


def late_request(early, source, target):
    """A request that takes long, and reads `source` at its end."""
    given = [
        Given("EARLY", "FP32", [SIDE, SIDE], region=(early.name, 4 * SIDE * SIDE, 0)),
        Given("LATE", "FP32", [COUNT], region=(source.name, SIZE, 0)),
    ]
    return "iso_late", given, [RequestedOutput("OUTPUT0", (target.name, SIZE, 0))]


# ---------------------------------------------------------------------------------------------- death


@pytest.mark.usefixtures("others_are_spared")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGFPE, signal.SIGABRT])
def test_a_process_that_is_killed_in_the_midst_costs_its_request(victim, client, number):
    pid = process_of(victim, "iso_late")
    with lent(client, 4 * SIDE * SIDE) as early, lent(client, SIZE) as source, lent(client, SIZE) as target:
        request = late_request(early, source, target)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.infer, *request)
            comes_to(lambda: mapped_by_children(victim, source.path.name), 1)
            os.kill(pid, number)
            failure = running.exception()
        assert isinstance(failure, Refused), failure
        assert failure.text.endswith(
            f"model 'iso_late', isolated instance 'iso_late_0_0': its process was ended by signal {number.value} ({number.name}) "
            "while it had this request; it is started anew"
        )
        source.write(b"\x07" * SIZE)
        client.infer(*request)
        assert target.read(SIZE) == b"\x07" * SIZE
    assert process_of(victim, "iso_late") != pid


SMALLEST = np.iinfo(np.int32).min
# ONNX Runtime itself looks for zeros, in the versions that are tested here.
BY_ZERO = "Integer division by zero"
NO_RESULT = "the model divided an integer by zero, or the smallest integer by -1, with these inputs"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="no fault of other processors")
@pytest.mark.usefixtures("nobody_dies")
@pytest.mark.parametrize(("numbers", "by", "reason"), [([7, 8, 9], [1, 0, 3], BY_ZERO), ([7, SMALLEST, 9], [1, -1, 3], NO_RESULT)])
def test_a_division_without_a_result_fails_its_request_and_the_process_lives_on(victim, client, numbers, by, reason):
    pid = process_of(victim, "iso_divide")
    for _ in range(2):
        with pytest.raises(Refused) as failure:
            client.infer("iso_divide", [int32("INPUT0", numbers), int32("INPUT1", by)])
        assert reason in failure.value.text, failure.value.text
        reply = client.infer("iso_divide", [int32("INPUT0", [7, 8, 9]), int32("INPUT1", [1, 2, -3])])
        assert reply.outputs["OUTPUT0"].raw == np.array([7, 4, -3], np.int32).tobytes()
    assert process_of(victim, "iso_divide") == pid


# ---------------------------------------------------------------------------------------------- regions


by_identity = functools.partial(through, model="iso_identity")


@pytest.mark.usefixtures("nobody_dies")
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("left", region_faults.SHRUNK)
def test_a_region_that_shrank_before_the_request(client, side, left):
    region_faults.shrink_and_register_again(client, by_identity, side, left, is_known=True)


@with_each_protocol
@pytest.mark.usefixtures("nobody_dies")
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_region_that_shrank_before_the_process_ever_saw_it(client, side):
    with lent(client, SIZE) as bad, lent(client, SIZE) as good:
        source, target = (bad, good) if side == "input" else (good, bad)
        os.truncate(bad.path, 0)
        with refuses("INVALID_ARG", lost(bad, "has 0 now (touched at offset ")):
            by_identity(client, source, target)
        by_identity(client, good, good)


@pytest.mark.usefixtures("nobody_dies")
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_region_that_shrinks_while_the_engine_computes(victim, client, side):
    """The engine reads the source and writes the target at its end. How long that takes is the machine's affair."""
    for _ in range(TRIES):
        with lent(client, 4 * SIDE * SIDE) as early, lent(client, SIZE) as bad, lent(client, SIZE) as good:
            source, target = (bad, good) if side == "input" else (good, bad)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                running = pool.submit(client.infer, *late_request(early, source, target))
                comes_to(lambda: mapped_by_children(victim, bad.path.name), 1)
                os.truncate(bad.path, 0)
                failure = running.exception()
            if failure is not None:
                check_lost(failure, bad, "has 0 now (touched at offset ")
                return
    pytest.fail("the engine was always done before the region shrank")


@pytest.mark.usefixtures("nobody_dies")
def test_a_region_that_shrinks_and_grows_all_the_time(client):
    region_faults.shrink_and_grow_all_the_time(client, by_identity)


@pytest.mark.usefixtures("nobody_dies")
def test_holes_that_appear_all_the_time(client):
    region_faults.punch_all_the_time(client, by_identity, 100)


# ---------------------------------------------------------------------------------------------- copies


def sums_request(made, count: int = COUNT):
    given = [Given(name, "FP32", [1, count], region=(made[name].name, 4 * count, 0)) for name in ("INPUT0", "INPUT1")]
    return "iso_sums", given, [RequestedOutput(name, (made[name].name, 4 * count, 0)) for name in ("OUTPUT0", "OUTPUT1")]


@with_each_protocol
@pytest.mark.parametrize("count", [16, COUNT])
def test_nothing_is_copied_from_shared_memory_to_an_isolated_model_and_back(victim, client, memory, count):
    made = {name: memory(SIZE) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")}
    left, right = (np.arange(count, dtype=np.float32) % modulus for modulus in (251, 509))
    made["INPUT0"].write(left.tobytes())
    made["INPUT1"].write(right.tobytes())
    with copying(victim):
        for _ in range(REQUESTS):
            client.infer(*sums_request(made, count))
    assert made["OUTPUT0"].read(4 * count) == (left + right).tobytes()
    assert made["OUTPUT1"].read(4 * count) == (left - right).tobytes()


def test_nothing_is_copied_on_the_way_to_a_lease_of_the_servers_choice(victim):
    with any_client("session", victim) as client:
        lease = client.borrow(2 * SIZE, np.ones(2 * COUNT, np.float32).tobytes())
        given = [Given(f"INPUT{n}", "FP32", [1, COUNT], region=(lease.name, SIZE, n * SIZE)) for n in range(2)]
        with copying(victim):
            for _ in range(REQUESTS):
                reply = client.infer("iso_sums", given, leased=["OUTPUT0", "OUTPUT1"])
        assert reply.outputs["OUTPUT0"].raw == np.full(COUNT, 2, np.float32).tobytes()
        assert reply.outputs["OUTPUT1"].raw == bytes(SIZE)


def test_what_the_process_copies_is_counted_by_the_server(victim, client, memory):
    """The engine's strings are its own."""
    both, word = memory(2 * SIZE), b"\x04\0\0\0abcd"
    both.write(word * (SIZE // 8))
    given = Given("INPUT0", "BYTES", [SIZE // 8], region=(both.name, SIZE, 0))
    before = copied(victim)["strings"]
    client.infer("iso_strings", [given], [RequestedOutput("OUTPUT0", (both.name, SIZE, SIZE))])
    assert copied(victim)["strings"] > before
    assert both.read(SIZE, SIZE) == both.read(SIZE)


def test_an_engine_reads_what_was_written_while_it_ran(victim, client, memory):
    early, source, target = memory(4 * SIDE * SIDE), memory(SIZE), memory(SIZE)
    before, canary = (np.full(COUNT, value, np.float32).tobytes() for value in (1, 2))
    for _ in range(TRIES):
        source.write(before)
        with copying(victim), concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.infer, *late_request(early, source, target))
            time.sleep(WRITTEN_AFTER_S)
            source.write(canary)
            running.result()
        if target.read(SIZE) == canary:
            return
        assert set(np.frombuffer(target.read(SIZE), np.float32).tolist()) <= torn(1.0, 2.0)
    pytest.fail("the engine never read what was written after it was asked")


# ---------------------------------------------------------------------------------------------- as if it were within the server


def test_clients_cannot_tell_an_isolated_model_from_another(victim):
    with any_client("http", victim) as client:
        reports = [client.metadata(model) for model in ("sums", "iso_sums")]
        reports += [client.config(model) for model in ("sums", "iso_sums")]
        for one in reports:
            one["name"] = ""
            one.pop("parameters", None)
            for group in one.get("instance_group", []):
                group["name"] = ""
        assert reports[0] == reports[1] and reports[2] == reports[3]
        before = [count_of(client, model) for model in ("sums", "iso_sums")]
        pair = [Given(f"INPUT{n}", "FP32", [2, 3], np.ones(6, np.float32).tobytes()) for n in range(2)]
        replies = [client.infer(model, pair) for model in ("sums", "iso_sums")]
        for name in ("OUTPUT0", "OUTPUT1"):
            assert replies[0].outputs[name].raw == replies[1].outputs[name].raw
        wrong = [Given("INPUT0", "FP32", [2, 3], np.ones(6, np.float32).tobytes()),
                 Given("INPUT1", "FP32", [2, 4], np.ones(8, np.float32).tobytes())]  # fmt: skip
        failures = []
        for model in ("sums", "iso_sums"):
            with pytest.raises(Refused) as failure:
                client.infer(model, wrong)
            failures.append((failure.value.status, failure.value.text.replace(model, "")))
        assert failures[0] == failures[1]
        more = [np.subtract(count_of(client, model), old) for model, old in zip(("sums", "iso_sums"), before)]
        assert more[0].tolist() == more[1].tolist()


def count_of(client, model: str) -> list[int]:
    """Inferences, executions, successes and failures."""
    [found] = client.statistics(model)
    kinds = found["inference_stats"]
    return [int(found["inference_count"]), int(found["execution_count"]), int(kinds["success"]["count"]), int(kinds["fail"]["count"])]


def test_a_model_that_is_unloaded_has_no_process_any_more(victim, baseline):
    pid = process_of(victim, "iso_identity")
    with any_client("http", victim) as client:
        client.unload("iso_identity")
        comes_to(lambda: state_of(pid), "")
        assert pid not in processes_of(victim.pid)
        client.load("iso_identity")
    assert process_of(victim, "iso_identity") != pid


def test_processes_end_with_their_server(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 has no isolated models")
    with serving_isolated(launcher, "isolated_end", tmp_path / "socket") as server:
        children = processes_of(server.pid)
        assert len(children) == len(GRAPHS)
        check_children_end(server, children)
