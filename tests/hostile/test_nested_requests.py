"""Do requests that models make of each other harm nobody else, whatever happens to a process in the midst of them, and what is copied?"""

import concurrent.futures
import time

import numpy as np
import pytest
from clients import Given, Refused, RequestedOutput, fp32, open_client, text
from passages import memory_of
from python_setup import serving, strings
from test_copies import copied

MODELS = ("py_asking", "py_identity", "py_decoupled", "py_sleeping", "py_actions")
COUNT = 1 << 18


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 starts no process anew, and counts no copies")
    with serving(launcher, "calls_hostile", *MODELS) as found:
        yield found


@pytest.fixture
def client(server):
    with open_client("http", server) as found:
        yield found


def run_code(client, code: str, *more, **parameters) -> str:
    reply = client.infer("py_asking", [text("CODE", [code.encode()]), *more], **parameters)
    return strings(reply.outputs["SAID"].raw)[0]


SLEEPS = "request_of('py_sleeping', pb_utils.Tensor('MS', np.array([{0}], np.int32)), outputs=['WAS'])"


def test_a_process_that_dies_while_it_asks_fails_its_own_request_alone(server, client):
    code = f"threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGKILL]).start(); out = said({SLEEPS.format(60_000)}.exec())"
    with concurrent.futures.ThreadPoolExecutor() as threads:
        dies = threads.submit(run_code, client, code)
        time.sleep(0.1)
        with open_client("grpc", server) as other:
            lives = other.infer("py_identity", [fp32("INPUT0", [1, 2])])
        with pytest.raises(Refused) as caught:
            dies.result()
    assert "is not healthy" in caught.value.text
    assert lives.outputs["OUTPUT0"].raw == fp32("", [1, 2]).raw
    # Both models answer again.
    assert run_code(client, "out = said(request_of('py_identity', fp32(3)).exec())") == "{'OUTPUT0': [3.0]}"
    assert "error" not in run_code(client, f"out = said({SLEEPS.format(1)}.exec())")


def test_a_process_that_dies_while_it_is_asked_is_an_error_to_who_asks(client):
    kills = "request_of('py_decoupled', texts('send(text(1)); os.kill(os.getpid(), signal.SIGKILL)'), outputs=['SAID']).exec(decoupled=True)"
    found = run_code(client, f"out = [said(one) for one in {kills}]")
    assert "{'SAID': [b'1']}" in found and "is not healthy" in found, found
    assert run_code(client, "out = [said(one) for one in request_of('py_decoupled', texts(\"send(text('a'), FINAL)\"), outputs=['SAID']).exec(decoupled=True)]")


def test_a_model_that_does_not_read_responses_does_not_fill_the_server(server, client):
    """80 KB each time, to an iterator that is never asked for more."""
    endless = "def later_work():\\n    for n in range(1 << 30):\\n        if sender.is_cancelled(): break\\n        send(numbers(*[n] * 20000))\\n    send(flags=FINAL)\\nthreading.Thread(target=later_work).start()"
    code = f"self.kept.append(request_of('py_decoupled', texts(\"{endless}\"), outputs=['MORE']).exec(decoupled=True)); out = 1"

    def resident() -> int:
        with open(f"/proc/{server.pid}/status") as status:
            return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) << 10

    run_code(client, code)
    time.sleep(1.0)
    before = resident()
    time.sleep(2.0)
    assert resident() - before < 16 << 20
    # Whoever drops the iterator ends the request.
    for _ in range(2):  # the model has two instances
        run_code(client, "self.kept.clear()")


def test_many_requests_leave_nothing_behind(server, client):
    code = "for n in range(500): request_of('py_identity', fp32(*[n] * 3000)).exec()\nout = 'done'"
    run_code(client, code)

    def mappings() -> int:
        with open(f"/proc/{server.pid}/maps") as maps:
            return len(maps.readlines())

    before = mappings()
    for _ in range(5):
        assert run_code(client, code) == "done"
    # Within one execute as well: what the model drops is used again.
    assert run_code(client, code.replace("500", "3000")) == "done"
    assert mappings() - before < 20


@pytest.mark.parametrize("kind", ["region"])
def test_a_tensor_in_shared_memory_goes_through_two_models_without_a_copy(server, client, kind):
    code = """
tensor = pb_utils.get_input_tensor_by_name(request, 'NUMBERS')
response = request_of('py_identity', pb_utils.Tensor('INPUT0', tensor.as_numpy())).exec()
out = float(response.output_tensors()[0].as_numpy()[-1])
"""
    with memory_of(kind, client, server) as make:
        memory = make(COUNT * 4)
        memory.write(np.arange(COUNT, dtype=np.float32).tobytes())
        given = Given("NUMBERS", "FP32", [COUNT], region=(memory.name, COUNT * 4, 0))
        # The server begins to note what a process may pass on with its first request.
        run_code(client, code, given)
        run_code(client, code, given)
        before = copied(server)
        assert run_code(client, code, given, outputs=[RequestedOutput("SAID")]) == str(float(COUNT - 1))
        grown = {key: value - before.get(key, 0) for key, value in copied(server).items() if value != before.get(key, 0)}
    # The model's own copy of its output into the place that it is given is no copy of the server's.
    assert sum(grown.values()) < 4096, grown
