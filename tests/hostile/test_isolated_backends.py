"""Do compiled backends in processes of their own cost nobody anything but the requests that their own process had when it died?"""

import concurrent.futures
import functools
import json
import os
import time

import pytest
import region_faults
from clients import Given, RequestedOutput, fp32, refuses
from compiled_setup import put, serving, workers_of
from gates import Gate
from passages import SIZE, check_lost, through
from pythons import PythonWitness, check_children_end, check_no_memory_of_clients, each_is_answered_again, everybody, state_of
from server_setup import LEASE_BYTES_MAX, SESSION_BYTES_MAX
from test_copies import copying
from witness import any_client, comes_to, lent, maps_with, with_each_protocol

COUNT = SIZE // 4
REQUESTS = 20
MODELS = ["i_identity", "i_witness", "i_die", "i_noise", "i_stuck", "i_read"]
ONE = "instance_group { kind: KIND_CPU count: 1 }"
NAMES = ("IN", "OUT")

pytestmark = pytest.mark.timeout(3600)


class BackendWitness(PythonWitness):
    """Asks an isolated backend's model of its own."""

    model = "i_witness"
    names = NAMES


@pytest.fixture(scope="module")
def victim(launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("Triton has no isolated backends")
    repository = launcher.copy_of("isolated_backends", "identity_fp32", "identity_bytes", "simple")
    for name in ("i_identity", "i_witness"):
        put(repository, name, more=ONE)
    put(repository, "i_die", "die", more=ONE)
    put(repository, "i_noise", "noise", more=ONE)
    put(repository, "i_stuck", "stuck", more=ONE)
    gate = Gate(launcher.scratch / "isolated_backends_gate")
    put(repository, "i_read", "read_long", gate=str(gate.path), more=ONE)
    put(repository, "here", more=ONE, isolated="false")
    socket = tmp_path_factory.mktemp("backends") / "socket"
    flags = [
        "--backend-config=sample,isolated=true", f"--session-socket={socket}", f"--lease-max-bytes={LEASE_BYTES_MAX}",
        f"--session-max-bytes={SESSION_BYTES_MAX}", "--model-control-mode=explicit", "--load-model=*",
    ]  # fmt: skip
    with serving(launcher, "isolated_backends", repository, *flags) as found:
        found.session, found.gate = socket, gate
        yield found


def process_of(server, model: str) -> int:
    """The process that has a region mapped which only this model was given."""
    with any_client("http", server) as client, lent(client, 4096) as made:
        client.infer(model, [Given("IN", "FP32", [1], region=(made.name, 4, 0))])
        (found,) = [pid for pid in workers_of(server) if maps_with(pid, made.path.name)]
    return found


@pytest.fixture
def others_are_spared(victim):
    """Everybody who asks another model has byte-exact answers, from the same process before and after."""
    spared = process_of(victim, "i_witness")
    with everybody(victim, BackendWitness) as found:
        yield found
        each_is_answered_again(found)
    assert process_of(victim, "i_witness") == spared, "the process of another model was replaced"
    # What died comes to life again, after a pause if processes were killed before they had answered.
    comes_to(lambda: len(workers_of(victim)), len(MODELS))
    for model in MODELS:
        process_of(victim, model)
    check_no_memory_of_clients(victim)


def died(model: str, how: str) -> str:
    return (
        f"model '{model}' of backend 'sample', isolated instance '{model}_0_0': its process {how} while it had this request; it is "
        "started anew"
    )


# ---------------------------------------------------------------------------------------------- death

ENDS = [(1, "was ended by signal 11 (SIGSEGV)"), (2, "was ended by signal 6 (SIGABRT)"), (3, "ended with code 7")]


@pytest.mark.usefixtures("others_are_spared")
@pytest.mark.parametrize(("how", "how_it_died"), ENDS)
def test_a_backend_that_ends_its_process_costs_its_request(client, how, how_it_died):
    for _ in range(3):
        with refuses("INTERNAL", died("i_die", how_it_died)):
            client.infer("i_die", [fp32("IN", [how])])
        assert client.infer("i_die", [fp32("IN", [0, 5])]).outputs["OUT"].raw == fp32("", [0, 5]).raw


def test_what_a_backend_writes_before_it_aborts_is_in_the_log_and_the_error(victim):
    with any_client("http", victim) as client:
        with refuses("INTERNAL", died("i_die", ENDS[1][1]) + "\n\nIt printed last:\n  sample: aborts on purpose"):
            client.infer("i_die", [fp32("IN", [2])])
    comes_to(lambda: "model 'i_die' instance 0: sample: aborts on purpose" in victim.log_text(), True)


@pytest.mark.usefixtures("others_are_spared")
def test_a_backend_that_writes_all_the_time_is_slowed_down(victim):
    before, began = victim.log.stat().st_size, time.monotonic()
    with any_client("http", victim) as client:
        client.infer("i_noise", [fp32("IN", [2500])])
    comes_to(lambda: "model 'i_noise' instance 0: " in victim.log_text(), True)
    written, took_s = victim.log.stat().st_size - before, time.monotonic() - began
    # Each of its lines of 62 bytes is logged with who wrote it.
    assert written < 4 * (int(took_s) + 2) * (1 << 20)


@pytest.mark.usefixtures("others_are_spared")
def test_a_backend_that_hangs_at_the_end_is_ended(victim):
    pid = process_of(victim, "i_stuck")
    with any_client("http", victim) as client:
        client.unload("i_stuck")
        comes_to(lambda: state_of(pid), "")
        client.load("i_stuck")
    assert process_of(victim, "i_stuck") != pid


@pytest.mark.usefixtures("others_are_spared")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_configuration_of_a_client_brings_no_backend_into_the_servers_process(victim, protocol):
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    sent = {
        "backend": "sample", "input": [{"name": "IN", **tensor}], "output": [{"name": "OUT", **tensor}],
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    }  # fmt: skip
    begins = "failed to load 'i_die', failed to poll from model repository: "
    brings = f"{begins}the configuration that a load of model 'i_die' brings"
    for key, value, text in [
        ("isolated", "false", f"{brings} sets isolated to 'false', which the model's own configuration does not"),
        ("isolated", "", f"{brings} sets isolated to '', which the model's own configuration does not"),
        ("nerite.cost_bound", "input_sizes", f"{brings} sets nerite.cost_bound to 'input_sizes', which"),
        ("intra_op_thread_count", "4096", f"{brings} sets intra_op_thread_count to '4096', which"),
        ("session.intra_op.allow_spinning", "1", f"{brings} sets session.intra_op.allow_spinning to '1', which"),
    ]:
        parameters = {"mode": {"string_value": "die"}, key: {"string_value": value}}
        with any_client(protocol, victim) as client, refuses("INTERNAL", text):
            client.load("i_die", {"config": json.dumps({**sent, "parameters": parameters})})
    with any_client(protocol, victim) as client, refuses("INTERNAL", died("i_die", ENDS[0][1])):
        client.infer("i_die", [fp32("IN", [1])])


# ---------------------------------------------------------------------------------------------- regions


by_identity = functools.partial(through, model="i_identity", names=NAMES)


@pytest.fixture
def nobody_dies(others_are_spared, victim):
    before = workers_of(victim)
    yield
    assert workers_of(victim) == before, f"a model's process died:\n{victim.log_text()[-3000:]}"


@pytest.mark.usefixtures("nobody_dies")
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("left", region_faults.SHRUNK)
def test_a_region_that_shrank_before_the_request(client, side, left):
    region_faults.shrink_and_register_again(client, by_identity, side, left, is_known=True)


@with_each_protocol
@pytest.mark.usefixtures("nobody_dies")
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_region_that_shrinks_while_the_backend_uses_it(victim, client, side):
    with lent(client, SIZE) as bad, lent(client, SIZE) as good:
        source, target = (bad, good) if side == "input" else (good, bad)
        given = [Given("IN", "FP32", [COUNT], region=(source.name, SIZE, 0))]
        outputs = [RequestedOutput("OUT", (target.name, SIZE, 0))]
        client.infer("i_read", given, outputs)
        with concurrent.futures.ThreadPoolExecutor(1) as pool, victim.gate.closed() as gate:
            running = pool.submit(client.infer, "i_read", given, outputs)
            gate.has_run()
            os.truncate(bad.path, 0)
            gate.open()
            check_lost(running.exception(), bad, "has 0 now (touched at offset ")


@pytest.mark.usefixtures("nobody_dies")
def test_a_region_that_shrinks_and_grows_all_the_time(client):
    region_faults.shrink_and_grow_all_the_time(client, by_identity)


# ---------------------------------------------------------------------------------------------- copies


def test_the_server_copies_nothing_between_memory_of_a_client_and_the_backend(victim, client):
    with lent(client, 2 * SIZE, b"\x01" * SIZE) as made:
        given = [Given("IN", "FP32", [COUNT], region=(made.name, SIZE, 0))]
        with copying(victim):
            for _ in range(REQUESTS):
                client.infer("i_identity", given, [RequestedOutput("OUT", (made.name, SIZE, SIZE))])
        assert made.read(SIZE, SIZE) == b"\x01" * SIZE


def test_nothing_is_copied_on_the_way_to_a_lease_of_the_servers_choice(victim):
    with any_client("session", victim) as client:
        lease = client.borrow(SIZE, b"\x02" * SIZE)
        given = [Given("IN", "FP32", [COUNT], region=(lease.name, SIZE, 0))]
        with copying(victim):
            for _ in range(REQUESTS):
                reply = client.infer("i_identity", given, leased=["OUT"])
        assert reply.outputs["OUT"].raw == b"\x02" * SIZE


# ---------------------------------------------------------------------------------------------- the server


def test_processes_end_with_their_server(launcher):
    if launcher.oracle:
        pytest.skip("Triton has no isolated backends")
    repository = launcher.scratch / "isolated_backends_end"
    put(repository, "i_identity", more=ONE)
    with serving(launcher, "isolated_backends_end", repository, "--backend-config=sample,isolated=true") as server:
        children = workers_of(server)
        assert len(children) == 1
        check_children_end(server, children)
