"""Does the server outlive clients that misuse their regions, and does it give back all they took?"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import struct
import threading

import pytest
from catalogue import SLOW_MS
from clients import TIMEOUT_S, Given, Refused, RequestedOutput, differs, fp32, open_client
from footprint import descriptors, mappings
from meanwhile import Delay, again_if_too_late
from regions import fresh_name, region, registered

REFUSALS = 10_000

# ---------------------------------------------------------------------------------------------- registrations


def refused_registrations(key: str):
    """One round of bodies, each refused for another reason."""
    return [
        {"key": "/nerite_no_such_object", "byte_size": 64, "offset": 0},
        {"key": key, "byte_size": 2**40, "offset": 0},
        {"key": key, "byte_size": 64, "offset": 2**40},
        {"key": key, "byte_size": 64, "offset": 1},
        {"key": key, "byte_size": 0, "offset": 0},
        {"key": key, "byte_size": 2**64 - 4096, "offset": 4096},
        {"key": "///", "byte_size": 64, "offset": 0},
        {"key": "/a/b", "byte_size": 64, "offset": 0},
        {"key": 5, "byte_size": 64, "offset": 0},
        {"key": key},
    ]


@differs("2.51 keeps the descriptor of each object whose size was too small")
def test_refused_registrations_over_http_leave_nothing_behind(victim):
    with region(4096) as made:
        rounds = refused_registrations(made.key)
        connection = http.client.HTTPConnection(victim.http, timeout=TIMEOUT_S)
        before = sorted(descriptors(victim.pid))
        for number in range(REFUSALS):
            body = json.dumps(rounds[number % len(rounds)])
            connection.request("POST", f"/v2/systemsharedmemory/region/{fresh_name()}/register", body)
            answer = connection.getresponse()
            answer.read()
            assert answer.status in (400, 500)
        connection.close()
        assert sorted(descriptors(victim.pid)) == before
        assert mappings(victim.pid, made.key) == 0


@differs("2.51 keeps the descriptor of each object whose size was too small")
def test_refused_registrations_over_grpc_leave_nothing_behind(victim):
    with region(4096) as made, open_client("grpc", victim) as client:
        rounds = [one for one in refused_registrations(made.key) if isinstance(one["key"], str) and "byte_size" in one]
        before = sorted(descriptors(victim.pid))
        for number in range(REFUSALS):
            with pytest.raises(Refused):
                client.register_system(fresh_name(), **rounds[number % len(rounds)])
        assert sorted(descriptors(victim.pid)) == before
        assert mappings(victim.pid, made.key) == 0


def test_registering_and_unregistering_leaves_nothing_behind(victim):
    with open_client("grpc", victim) as client:
        before = sorted(descriptors(victim.pid))
        for _ in range(500):
            with registered(client, 4096) as made:
                assert mappings(victim.pid, made.key) == 1
            assert mappings(victim.pid, made.key) == 0
        assert sorted(descriptors(victim.pid)) == before


# ---------------------------------------------------------------------------------------------- regions that shrink

KILLED = "a client that truncates its region kills 2.51 (SIGBUS)"


@differs(KILLED, run=False)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("left", [0, 4096])
def test_a_truncated_region_fails_its_own_request_only(victim, protocol, side, left):
    size = 1 << 20
    with open_client(protocol, victim) as client, registered(client, size) as bad, registered(client, size) as good:
        os.truncate(bad.path, left)
        where = (bad.name, size, 0)
        count = size // 4
        with pytest.raises(Refused) as caught:
            if side == "input":
                client.infer("identity_fp32", [Given("INPUT0", "FP32", [count], region=where)])
            else:
                given = Given("INPUT0", "FP32", [count], region=(good.name, size, 0))
                client.infer("identity_fp32", [given], [RequestedOutput("OUTPUT0", where)])
        assert bad.name in caught.value.text
        good.write(fp32("", [7]).raw)
        given = Given("INPUT0", "FP32", [1], region=(good.name, 4, 0))
        assert client.infer("identity_fp32", [given], [RequestedOutput("OUTPUT0", (good.name, 4, 8))])
        assert good.read(4, 8) == fp32("", [7]).raw


@differs(KILLED, run=False)
@again_if_too_late
def test_a_region_truncated_while_the_model_runs(victim):
    size = 1 << 20
    with open_client("http", victim) as client, registered(client, size) as bad:
        given = Given("INPUT0", "FP32", [size // 8], region=(bad.name, size // 2, 0))
        outputs = [RequestedOutput("OUTPUT0", (bad.name, size // 2, size // 2))]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            delay = Delay(SLOW_MS)
            running = pool.submit(client.infer, "slow_fp32", [given], outputs)
            delay.wait_for_requests(victim, "slow_fp32")
            os.truncate(bad.path, 0)
            delay.must_last()
            assert isinstance(running.exception(), Refused)


@differs(KILLED, run=False)
def test_strings_in_a_truncated_region(victim):
    with open_client("grpc", victim) as client, registered(client, 8192, struct.pack("<I", 4) + b"abcd") as bad:
        os.truncate(bad.path, 0)
        with pytest.raises(Refused):
            client.infer("identity_bytes", [Given("INPUT0", "BYTES", [1], region=(bad.name, 8, 0))])


def test_string_lengths_that_change_under_the_servers_eyes(victim):
    """A writer flips a length word all the time; each answer is right or refused, and never a crash."""
    good, bad = struct.pack("<I", 4), struct.pack("<I", 2**32 - 1)
    with open_client("grpc", victim) as client, registered(client, 4096, (good + b"abcd") * 64) as made:
        stop = threading.Event()

        def flip():
            while not stop.is_set():
                made.write(bad, 8 * 40)
                made.write(good, 8 * 40)

        writer = threading.Thread(target=flip)
        writer.start()
        try:
            for _ in range(300):
                with contextlib.suppress(Refused):
                    client.infer("identity_bytes", [Given("INPUT0", "BYTES", [64], region=(made.name, 512, 0))])
        finally:
            stop.set()
            writer.join()


def test_registering_and_inferring_race(victim):
    """Threads pull regions from under each other; every answer is the right one or an ordinary refusal."""
    names = [fresh_name() for _ in range(4)]

    def work(seed: int) -> int:
        chance = random.Random(seed)
        done = 0
        with open_client("grpc" if seed % 2 else "http", victim) as client, region(4096, fp32("", [5]).raw) as made:
            for _ in range(150):
                name = chance.choice(names)
                with contextlib.suppress(Refused):
                    match chance.randrange(4):
                        case 0:
                            client.register_system(name, made.key, 4096)
                        case 1:
                            client.unregister("system", name)
                        case 2:
                            client.status("system")
                        case 3:
                            given = Given("INPUT0", "FP32", [1], region=(name, 4, 0))
                            assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == fp32("", [5]).raw
                            done += 1
            for name in names:
                with contextlib.suppress(Refused):
                    client.unregister("system", name)
        return done

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) > 0
    with open_client("http", victim) as client:
        client.unregister("system")
        assert client.status("system") == []
