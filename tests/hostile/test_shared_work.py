"""What if a client misuses what models share: the response cache, and the resources of the rate limiter?

The answers of other clients stay exact, the threads that serve connections come back, and memory stays within the cache's size.
"""

import concurrent.futures
import http.client
import json
import pathlib
import threading
import time

import catalogue
import numpy as np
import pytest
from batching_setup import put
from busy import front_threads_come_back
from cache_setup import caching, samples
from clients import Given, RequestedOutput, fp32, open_client
from regions import registered

MIB = 1 << 20
CACHE = 64 * MIB
LARGE = 48 * MIB
SLOW_MS = 40


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 takes requests of equal bytes for equal, and waits for what it copies")
    repository = launcher.copy_of("shared_work", "identity_fp32")
    put(launcher, repository, caching("kept"))
    put(launcher, repository, caching("kept_slow", delay_ms=SLOW_MS))
    group = 'instance_group [ { kind: KIND_CPU rate_limiter { resources [ { name: "R" count: 1 global: true } ] } } ]\n'
    for name, delay_ms in (("slow", 100), ("waits", 0)):
        put(launcher, repository, catalogue.identity(name, ("FP32", (-1,)), max_batch=8, extra=group, delay_ms=delay_ms))
    flags = [
        f"--cache-config=local,size={CACHE}", "--rate-limit=execution_count", "--http-thread-count=1",
        "--http-max-input-size=1000000000",
    ]  # fmt: skip
    with launcher.running("shared_work", *flags, repository=repository) as found:
        yield found


def resident(server) -> int:
    for line in pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def values(output) -> np.ndarray:
    return np.frombuffer(output.raw, np.float32)


def test_large_look_ups_and_hits_keep_no_thread_of_others(server):
    """48 MiB are hashed on the way in, kept, and copied to a region, again and again, while somebody asks small things."""
    floats = LARGE // 4
    ended = threading.Event()
    with open_client("http", server) as attacker, registered(attacker, 2 * LARGE) as region:
        given = Given("INPUT0", "FP32", [1, floats], region=(region.name, LARGE, 0))
        output = RequestedOutput("OUTPUT0", (region.name, LARGE, LARGE))

        def attack():
            with open_client("grpc", server) as client:
                while not ended.is_set():
                    client.infer("kept", [given], [output])

        with concurrent.futures.ThreadPoolExecutor(3) as pool, front_threads_come_back(server):
            attacks = [pool.submit(attack) for _ in range(3)]
            hits = samples(server)["nv_cache_num_hits"]
            deadline = time.monotonic() + 60
            number = 0
            while samples(server)["nv_cache_num_hits"] < hits + 6 and time.monotonic() < deadline:
                number += 1
                answer = attacker.infer("kept", [fp32("INPUT0", [[number]])]).outputs["OUTPUT0"]
                assert values(answer) == [number]
            ended.set()
            for attack in attacks:
                attack.result()
        assert samples(server)["nv_cache_num_hits"] >= hits + 6


def test_a_client_that_changes_its_memory_deceives_itself_alone(server):
    """It does so after its request was looked up and before the model reads it, and then where its output was written."""
    size = 4096
    with open_client("grpc", server) as attacker, registered(attacker, 2 * size) as region:
        given = Given("INPUT0", "FP32", [1, size // 4], region=(region.name, size, 0))
        output = RequestedOutput("OUTPUT0", (region.name, size, size))

        def full(value: float) -> np.ndarray:
            return np.full((1, size // 4), value, np.float32)

        with concurrent.futures.ThreadPoolExecutor(1) as pool, open_client("http", server) as client:
            for value in range(20):
                region.write(full(value).tobytes())
                attack = pool.submit(attacker.infer, "kept_slow", [given], [output] if value % 2 else None)
                time.sleep(SLOW_MS / 2000)
                region.write(full(-1).tobytes())
                attack.result()
                region.write(full(-2).tobytes(), size)
                answer = client.infer("kept_slow", [fp32("INPUT0", full(value))]).outputs["OUTPUT0"]
                assert (values(answer) == value).all()
                region.write(full(value).tobytes())
                # What others were answered is true for it as well.
                attacker.infer("kept_slow", [given], [output])
                assert region.read(size, size) == full(value).tobytes()


def test_a_client_that_fills_the_cache_takes_no_more_than_its_size(server):
    content = np.zeros((1, 65536), np.float32)
    with open_client("grpc", server) as client:
        client.infer("kept", [fp32("INPUT0", content)])
        before = resident(server)
        for number in range(600):
            content[0, 0] = 1000 + number
            answer = client.infer("kept", [fp32("INPUT0", content)]).outputs["OUTPUT0"]
            assert values(answer)[0] == 1000 + number
    found = samples(server)
    assert found["nv_cache_num_evictions"] > 300 and found["nv_cache_util"] <= 1
    assert resident(server) - before < CACHE + 32 * MIB


def test_clients_that_go_while_they_wait_for_a_resource_leave_it_to_others(server):
    """Forty ask for a model that keeps the only resource for 100 ms each, and hang up."""
    document = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]})
    for _ in range(40):
        connection = http.client.HTTPConnection(server.http, timeout=60)
        connection.request("POST", "/v2/models/slow/infer", document)
        connection.close()
    began = time.monotonic()
    with open_client("http", server) as client:
        for number in range(5):
            answer = client.infer("waits", [fp32("INPUT0", [[number]])]).outputs["OUTPUT0"]
            assert values(answer) == [number]
    # At most the one that runs, and one whose turn came before, hold each of them up.
    assert time.monotonic() - began < 5 * 0.4 + 3
