"""What if a request is made of very many tiny strings?

An empty string is four bytes of a request, and some 64 in a runtime, also where it came through shared memory, for which nobody is charged. So the
strings of a request are counted, and charged to the client.
"""

import concurrent.futures
import contextlib
import json
import os
import socket
import time

import graphs
import make_models
import pytest
from clients import Answer, http_call
from meters import metric, peak
from regions import region
from server_setup import onnxruntime_library
from users import as_user
from witness import falls_to, resident

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")

MIB = 1 << 20
STRINGS_MAX = 16 << 20
STRING_BYTES = 64
PER_PEER = 96 * MIB
PER_CONNECTION = 48 * MIB
GREEDY = 3_100_000 + os.getpid()
# So many are within the budget of a connection.
SOME = PER_CONNECTION // STRING_BYTES // 2
CLIENTS = 8
INSTANCES = 4
# Beside the strings themselves: the messages and regions of all clients, and what the allocator keeps.
SLACK = 96 * MIB
# The run of a client that was ended goes on to its next operator. Until then the runtime has its inputs and its outputs, and copies of both.
RUNS = INSTANCES * 4 * SOME * STRING_BYTES


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 counts no strings")
    repository = launcher.copy_of("tiny_strings", "identity_bytes")
    config = f'backend: "onnxruntime"\ninstance_group [ {{ count: {INSTANCES} kind: KIND_CPU }} ]\n'
    make_models.put(repository, "strings", graphs.identity("BYTES", ["n"]), config)
    flags = [
        f"--onnxruntime-library={onnxruntime_library()}", "--backend-config=onnxruntime,default-max-batch-size=0",
        f"--memory-budget={3 * PER_PEER}", f"--memory-budget-per-peer={PER_PEER}", f"--memory-budget-per-connection={PER_CONNECTION}",
        "--http-max-input-size=100000000",
    ]  # fmt: skip
    with launcher.running("tiny_strings", *flags, repository=repository) as found:
        yield found


def infer(server, model: str, count: int, name: str | None = None) -> Answer:
    """A request of so many empty strings, in the message or in a region. Its output is in the same region."""
    head = request_head(count, name)
    fields = {"Inference-Header-Content-Length": str(len(head))}
    return http_call(server.http, "POST", f"/v2/models/{model}/infer", head + (b"" if name else bytes(4 * count)), fields)


def request_head(count: int, name: str | None) -> bytes:
    place = {"shared_memory_region": name, "shared_memory_byte_size": 4 * count}
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [count], "parameters": place if name else {"binary_data_size": 4 * count}}
    output = {"name": "OUTPUT0", "parameters": place if name else {"binary_data": True}}
    return json.dumps({"inputs": [tensor], "outputs": [output]}).encode()


@contextlib.contextmanager
def empty_strings(server, count: int, uid: int):
    """A region of that user with so many empty strings, and its name."""
    with region(4 * count) as made:
        os.chown(made.path, uid, uid)
        name = f"strings{made.key[1:]}"
        call = lambda act, body: http_call(server.http, "POST", f"/v2/systemsharedmemory/region/{name}/{act}", body)
        assert as_user(uid, lambda: call("register", {"key": made.key, "offset": 0, "byte_size": 4 * count})).status == 200
        try:
            yield name
        finally:
            as_user(uid, lambda: call("unregister", {}))


def used(server) -> int:
    return metric(server, 'nerite_memory_budget_bytes{state="used"}')


@pytest.mark.parametrize("model", ["identity_bytes", "strings"])
def test_more_strings_than_a_request_may_have_are_refused_with_both_numbers(server, model):
    # Through a region, because a message of so many is more than the connection's budget.
    count = STRINGS_MAX + 1
    with empty_strings(server, count, GREEDY) as name:
        answer = as_user(GREEDY, lambda: infer(server, model, count, name))
    text = f"a request has at most {STRINGS_MAX} strings, got {count}; send fewer strings at once, or longer ones"
    assert (answer.status, json.loads(answer.body)["error"]) == (400, text)


def test_strings_that_take_more_than_the_budget_of_a_connection_are_refused(server):
    """Eight MiB of shared memory, which are charged to nobody, would take sixteen times as much."""
    count = 2 << 20
    with empty_strings(server, count, GREEDY) as name:
        answer = as_user(GREEDY, lambda: infer(server, "strings", count, name))
    text = f"the {count} strings of the request may take {count * STRING_BYTES} bytes, of {PER_CONNECTION} that a connection may hold"
    assert answer.status == 503 and text in json.loads(answer.body)["error"], answer.body


def test_the_memory_of_a_client_with_tiny_strings_is_bounded(server):
    """Many connections with as many strings as each may have. Those that are too much together fail, and others are answered."""
    before, resident_before = used(server), resident(server.pid)
    with empty_strings(server, SOME, GREEDY) as name, peak(lambda: resident(server.pid)) as most:

        def many(_: int) -> list[tuple[int, str]]:
            answers = []
            for _ in range(8):
                try:
                    answer = as_user(GREEDY, lambda: infer(server, "strings", SOME, name))
                    answers.append((answer.status, "" if answer.status == 200 else answer.error))
                except OSError:
                    # The connection held the most, and was ended.
                    answers.append((0, ""))
            return answers

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            running = [pool.submit(many, number) for number in range(CLIENTS)]
            honest = infer(server, "strings", 1000)
            answers = {said for one in running for said in one.result()}
        alone = as_user(GREEDY, lambda: infer(server, "strings", SOME, name))
    assert honest.status == 200, honest.body
    assert alone.status == 200, alone.body
    assert {status for status, _ in answers} <= {0, 200, 503}, answers
    falls_to(lambda: used(server), before + MIB)
    assert server.process.poll() is None
    assert most.most - resident_before < PER_PEER + RUNS + SLACK, f"{(most.most - resident_before) / MIB:.0f} MiB"


def test_a_client_that_goes_at_any_moment_leaves_all_instances_able_to_run(server):
    """Also while its strings are copied from ONNX Runtime, which takes as long as the run."""
    count = 1 << 18
    with empty_strings(server, count, GREEDY) as name:
        head = request_head(count, name)
        for number in range(60):
            with socket.create_connection(server.http.split(":"), timeout=60) as one:
                fields = f"POST /v2/models/strings/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(head)}\r\n\r\n"
                one.sendall(fields.encode() + head)
                time.sleep(number / 500)
        answers = [as_user(GREEDY, lambda: infer(server, "strings", 1000)) for _ in range(4 * INSTANCES)]
    assert [answer.status for answer in answers] == [200] * len(answers), {answer.body for answer in answers if answer.status != 200}


def test_an_honest_request_of_strings_is_answered_exactly(server):
    words = [f"word {number}".encode() for number in range(5000)]
    data = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [len(words)], "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
    answer = http_call(server.http, "POST", "/v2/models/strings/infer", head + data, {"Inference-Header-Content-Length": str(len(head))})
    assert answer.status == 200 and answer.body.endswith(data)
