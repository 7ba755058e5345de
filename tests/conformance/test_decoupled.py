"""May a Python model answer a request any number of times, from any thread, and what does its client hear?"""

import json
import queue
import time

import numpy as np
import pytest
import python_catalogue
from clients import TIMEOUT_S, GrpcClient, HttpClient, RequestedOutput, differs, fp32, grpc_channel, http_call, int32, refuses, service_stub, text
from python_setup import serving, strings
from regions import registered

MODEL = "py_decoupled"
WRONG = f"Failed to process the request(s) for model '{MODEL}_0', message: "


class Stream:
    """A stream that is fed one request at a time."""

    def __init__(self, channel):
        self.client = GrpcClient(channel)
        self.sent = queue.Queue()
        self.call = service_stub(channel).ModelStreamInfer(iter(self.sent.get, None), timeout=TIMEOUT_S)

    def send(self, code: str, *more, id: str = "r", outputs=None, model: str = MODEL) -> "Stream":
        inputs = [text("CODE", [code.encode()]), *more]
        parameters = {"triton_enable_empty_final_response": True}
        self.sent.put(self.client.request(model, inputs, outputs, id=id, parameters=parameters))
        return self

    def next(self) -> list[str]:
        """What the next message says: texts, an error, and at the end `|`."""
        return said(next(self.call))

    def rest(self) -> list[str]:
        """What comes up to the end of one request."""
        found = []
        while not found or found[-1] != "|":
            found += self.next()
        return found


def said(message) -> list[str]:
    response = message.infer_response
    found = [f"error: {message.error_message}"] if message.error_message else []
    for output, raw in zip(response.outputs, response.raw_output_contents):
        found += strings(raw) if output.datatype == "BYTES" else [f"{output.name} {np.frombuffer(raw, np.float32).tolist()}"]
    return found + ["|"] * response.parameters["triton_final_response"].bool_param


@pytest.fixture
def stream(python_server):
    with grpc_channel(python_server.grpc) as channel:
        made = Stream(channel)
        yield made
        made.sent.put(None)
        made.call.cancel()


IN_A_THREAD = """
def later_work():
    send(text('a'))
    time.sleep(0.05)
    send(text('b'), FINAL)
later(0.1, later_work)
"""
AFTER_CLOSED = """
send(text('a'), FINAL)
self.kept.append(refused(send, text('b')).output_tensors()[0].as_numpy()[0])
self.kept.append(refused(send, flags=FINAL).output_tensors()[0].as_numpy()[0])
"""
CLOSED = "Unable to send response. Response sender has been closed."

ANSWERED = [
    ("send(flags=FINAL)", ["|"]),
    ("send(text('a'), FINAL)", ["a", "|"]),
    ("send(text('a'), flags=FINAL)", ["a", "|"]),
    ("send(text('a')); send(flags=FINAL)", ["a", "|"]),
    ("send(text('a')); send(text('b')); send(text('c')); send(flags=FINAL)", ["a", "b", "c", "|"]),
    ("send(text('a')); send(text('b'), FINAL)", ["a", "b", "|"]),
    ("send(text('long ' * 20000)); send(text('short')); send(text('x' * 300000), FINAL)", ["long " * 20000, "short", "x" * 300000, "|"]),
    ("request.get_response_sender().send(text('a')); send(flags=FINAL)", ["a", "|"]),
    ("send(error('no')); send(text('a')); send(flags=FINAL)", ["error: no", "a", "|"]),
    ("send(error('no'), FINAL)", ["error: no", "|"]),
    ("send(error('no', pb_utils.TritonError.NOT_FOUND)); send(flags=FINAL)", ["error: no", "|"]),
    ("send(pb_utils.InferenceResponse([])); send(flags=FINAL)", ["|"]),
    ("send(refused(send)); send(flags=FINAL)",
     ["TritonModelException: Inference Response object must be provided when the response flags is set to zero.", "|"]),
    ("send(refused(send, text('a'), 2)); send(flags=FINAL)",
     ["TritonModelException: Unable to send response. Unsupported flag provided.", "|"]),
    ("send(refused(send, text('a'), 3)); send(flags=FINAL)",
     ["TritonModelException: Unable to send response. Unsupported flag provided.", "|"]),
    (IN_A_THREAD, ["a", "b", "|"]),
    ("send(numbers(1, 2, said=b'x')); send(numbers(3)); send(flags=FINAL)", ["x", "MORE [1.0, 2.0]", "MORE [3.0]", "|"]),
    ("send(text(request.requested_output_names() == {'SAID', 'MORE'})); send(flags=FINAL)", ["True", "|"]),
    ("send(text(request.is_cancelled(), sender.is_cancelled())); send(flags=FINAL)", ["False", "False", "|"]),
    ("raise ValueError('no way')", [f"error: {WRONG}ValueError: no way", "|"]),
    ("send(text('a')); raise ValueError('no way')", ["a", f"error: {WRONG}ValueError: no way", "|"]),
    ("returned = [text('a')]",
     [f"error: {WRONG}Python model '{MODEL}_0' is using the decoupled mode and the execute function must return None.", "|"]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), ANSWERED)
def test_what_is_sent_arrives_in_order(stream, code, expected):
    # An end that comes with a response is told with it; Triton and nerite tell it so.
    found = stream.send(code).rest()
    assert [one.split("\n\nAt:")[0] for one in found] == expected
    assert stream.send("send(text('well'), FINAL)").rest() == ["well", "|"]


def test_nothing_is_sent_after_the_end(stream):
    assert stream.send(AFTER_CLOSED).rest() == ["a", "|"]
    found = stream.send("send(text(*(one.decode() for one in self.kept)), FINAL); self.kept.clear()").rest()
    assert found == [f"TritonModelException: {CLOSED}"] * 2 + ["|"]


@differs("2.51 lets the client wait for ever", run=False)
@pytest.mark.parametrize("code", ["", "send(text('a'))", "self.kept.append(1)", "later(0.1, lambda: None); send(text('a'))"])
def test_a_request_that_the_model_drops_ends_with_an_error(stream, code):
    found = stream.send(code + "; del request, sender, send" if code else "pass").rest()
    assert found[:-2] == (["a"] if "send" in code else [])
    assert found[-2:] == [
        "error: the model let go of this request and of its response sender without sending the final flag", "|",
    ]  # fmt: skip


def test_outputs_that_nobody_wants_are_left_out(stream):
    code = "send(numbers(1, said=b'x')); send(numbers(2)); send(text('y'), FINAL)"
    assert stream.send(code, outputs=[RequestedOutput("MORE")]).rest() == ["MORE [1.0]", "MORE [2.0]", "|"]


def test_requests_of_a_stream_are_answered_between_each_other(stream):
    code = "self.go = threading.Event()\nlater(0, lambda: (self.go.wait(60), send(text('late'), FINAL)))"
    stream.send(code, id="first").send("send(text('early'), FINAL); self.go.set()", id="second")
    found = [next(stream.call) for _ in range(2)]
    assert [one.infer_response.id for one in found] == ["second", "first"]


def test_a_response_after_the_stream_was_half_closed(stream):
    stream.send("later(0.3, lambda: (send(text('a')), send(text('b'), FINAL)))")
    stream.sent.put(None)
    assert [said(one) for one in stream.call] == [["a"], ["b", "|"]]


def test_inputs_stay_until_the_end(stream):
    code = """
numbers_in = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
def later_work():
    for at in range(20):
        time.sleep(0.01)
        send(numbers(*numbers_in[at * 100:at * 100 + 3]))
    send(flags=FINAL)
later(0.05, later_work)
"""
    for round in range(3):
        values = np.arange(2000, dtype=np.float32) + round
        stream.send(code, fp32("NUMBERS", values.tolist()))
    found = [stream.next() for _ in range(63)]
    expected = [f"MORE {[at * 100.0 + n + round for n in range(3)]}" for round in range(3) for at in range(20)]
    assert sorted(sum(found, [])) == sorted(expected + ["|"] * 3)


def test_ten_thousand_responses(stream):
    stream.send("for n in range(10_000): send(text(n))\nsend(flags=FINAL)")
    assert stream.rest() == [str(n) for n in range(10_000)] + ["|"]


@differs("2.51 mixes up responses that are sent at the same time", run=False)
def test_threads_that_send_at_the_same_time(stream):
    code = """
def later_work(name):
    for n in range(200):
        send(text(f"{name} {n}"))
threads = [threading.Thread(target=later_work, args=(name,)) for name in "abcd"]
for thread in threads: thread.start()
for thread in threads: thread.join()
send(flags=FINAL)
"""
    found = stream.send(code).rest()
    assert sorted(found) == sorted([f"{name} {n}" for name in "abcd" for n in range(200)] + ["|"])
    for name in "abcd":
        assert [one for one in found if one.startswith(name)] == [f"{name} {n}" for n in range(200)]


def test_a_client_that_goes_is_seen(python_server):
    code = """
def later_work():
    deadline = time.monotonic() + 30
    while not sender.is_cancelled() and time.monotonic() < deadline:
        send(text('more'))
        time.sleep(0.01)
    self.kept.append(sender.is_cancelled() and request.is_cancelled())
    send(text('nobody reads this'))
    send(flags=FINAL)
threading.Thread(target=later_work).start()
"""
    with grpc_channel(python_server.grpc) as channel:
        stream = Stream(channel).send("self.kept.clear()\nsend(flags=FINAL)")
        assert stream.rest() == ["|"]
        stream.send(code)
        assert stream.next() == ["more"]
        stream.call.cancel()
        deadline = time.monotonic() + TIMEOUT_S
        seen = []
        while seen != ["True", "|"] and time.monotonic() < deadline:
            seen = Stream(channel).send("send(text(*self.kept), FINAL)").rest()
        assert seen == ["True", "|"]
        assert Stream(channel).send("self.kept.clear(); send(flags=FINAL)").rest() == ["|"]


# ------------------------------------------------------------------------------------------------- other ways


def test_a_region_is_written_by_each_response(python_server, stream):
    with registered(HttpClient(python_server.http), 64, bytes(64)) as made:
        code = "self.go = threading.Event()\nsend(numbers(1, 2))\nlater(0, lambda: (self.go.wait(60), send(numbers(3, 4)), send(flags=FINAL)))"
        stream.send(code, outputs=[RequestedOutput("MORE", (made.name, 8, 16))])
        assert stream.next() == ["MORE []"]
        assert made.read(8, 16) == fp32("", [1, 2]).raw
        generate(python_server, "self.go.set(); send(text('goes on'), FINAL)").ok()
        assert stream.rest() == ["MORE []", "|"]
        assert made.read(8, 16) == fp32("", [3, 4]).raw
        small = stream.send("send(numbers(1, 2, 3)); send(flags=FINAL)", outputs=[RequestedOutput("MORE", (made.name, 8, 16))]).rest()
        assert small[0].startswith("error: ") and "8 bytes" in small[0] and small[-1] == "|"


def generate(server, code: str, stream: bool = True):
    what = "generate_stream" if stream else "generate"
    return http_call(server.http, "POST", f"/v2/models/{MODEL}/{what}", {"CODE": code})


def events(answer) -> list[str]:
    found = [json.loads(part.removeprefix("data: ")) for part in answer.body.decode().split("\n\n") if part]
    return [one["SAID"] if "SAID" in one else one["error"] for one in found]


def test_events_of_a_generate_stream(python_server):
    answer = generate(python_server, "send(text('a')); send(error('no')); send(text('b')); send(flags=FINAL)")
    assert answer.status == 200 and events(answer) == ["a", "no", "b"]
    assert events(generate(python_server, "send(flags=FINAL)")) == []
    assert events(generate(python_server, "for n in range(3000): send(text(n))\nsend(flags=FINAL)")) == [str(n) for n in range(3000)]


NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"
)


def test_generate_wants_one_response(python_server):
    for code in ("send(text('a'), FINAL)", "send(text('a')); send(flags=FINAL)"):
        answer = generate(python_server, code, stream=False).ok()
        assert answer.json["SAID"] == "a"
    for code in ("send(text('a')); send(text('b'), FINAL)", "send(flags=FINAL)"):
        answer = generate(python_server, code, stream=False)
        assert (answer.status, answer.error) == (200, NOT_ONE)


def test_a_single_answer_is_no_way_to_ask(python_server):
    code = text("CODE", [b"send(text('a'), FINAL)"])
    with refuses("UNSUPPORTED", "HTTP end point doesn't support models with decoupled transaction policy"):
        HttpClient(python_server.http).infer(MODEL, [code])
    with grpc_channel(python_server.grpc) as channel, refuses("UNSUPPORTED", "ModelInfer RPC doesn't support models with decoupled"):
        GrpcClient(channel).infer(MODEL, [code])


def test_what_is_counted(python_server, stream):
    client = HttpClient(python_server.http)
    keys = ("inference_count", "execution_count")

    def counts():
        (one,) = client.statistics(MODEL)
        return [one[key] for key in keys] + [one["inference_stats"][key]["count"] for key in ("success", "fail")]

    before = counts()
    assert stream.send("send(text('a')); send(text('b')); send(flags=FINAL)").rest() == ["a", "b", "|"]
    assert stream.send("send(error('no')); send(flags=FINAL)").rest() == ["error: no", "|"]
    deadline = time.monotonic() + TIMEOUT_S
    while (found := [now - then for now, then in zip(counts(), before)]) != [2, 2, 2, 0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found == [2, 2, 2, 0]


def test_coroutines_run_beside_each_other(python_server):
    with grpc_channel(python_server.grpc) as channel:
        client = GrpcClient(channel)
        # On a busy machine the quick one may take long as well.
        for slow_ms in (500, 5_000, 50_000):
            sent = queue.Queue()
            call = service_stub(channel).ModelStreamInfer(iter(sent.get, None), timeout=TIMEOUT_S)
            for id, waits in (("slow", [slow_ms, 1]), ("quick", [1, 1, 1])):
                sent.put(client.request("py_decoupled_coroutine", [int32("WAITS_MS", waits)], id=id))
            sent.put(None)
            found = [one.infer_response.id for one in call if one.infer_response.outputs]
            if found == ["quick"] * 3 + ["slow"] * 2:
                break
        assert found == ["quick"] * 3 + ["slow"] * 2


@differs("2.51 lets the client wait for ever", run=False)
def test_a_coroutine_that_fails_ends_its_request(python_server):
    with grpc_channel(python_server.grpc) as channel:
        client = GrpcClient(channel)
        request = client.request("py_decoupled_coroutine", [int32("WAITS_MS", [1, -1])], id="x")
        found = list(service_stub(channel).ModelStreamInfer(iter([request]), timeout=TIMEOUT_S))
        assert [bool(one.error_message) for one in found] == [False, True]


def test_a_session_gets_every_response(launcher, tmp_path):
    """Through a lease, and by a call that goes on while another thread of the model answers."""
    if launcher.oracle:
        pytest.skip("2.51 has no sessions")
    nerite = pytest.importorskip("nerite")
    path = tmp_path / "sessions"
    with serving(launcher, "decoupled_session", MODEL, flags=[f"--session-socket={path}"]):
        with nerite.connect(f"unix:{path}") as client:
            model = client.model(MODEL)

            def stream(code: str, **more):
                return model.stream(CODE=np.array([code.encode()], np.object_), **more)

            def said(code: str) -> list[str]:
                return [one.SAID[0].decode() for one in stream(code, outputs=["SAID"])]

            assert said(IN_A_THREAD) == ["a", "b"]
            assert said("for one in range(100): send(text(one))\nsend(flags=FINAL)") == [str(one) for one in range(100)]
            assert said("send(flags=FINAL)") == []
            with pytest.raises(Exception, match="no luck"):
                said("send(text('a'))\nraise ValueError('no luck')")
            doubled = "given = pb_utils.get_input_tensor_by_name(request, 'NUMBERS').as_numpy()\nsend(numbers(*(2 * given)), FINAL)"
            (one,) = stream(doubled, NUMBERS=np.arange(70_000, dtype=np.float32), outputs=["MORE"])
            assert (one.MORE == 2 * np.arange(70_000, dtype=np.float32)).all()
            # A client that goes while responses wait for it leaves the model to others.
            responses = stream("while not sender.is_cancelled(): send(text('x'))\nsend(flags=FINAL)", outputs=["SAID"])
            assert next(responses).SAID[0] == b"x"
            responses.close()
            assert said("send(text('after'), FINAL)") == ["after"]


@pytest.mark.parametrize("leaves", [False, True])
def test_the_log_names_the_model_that_holds_the_exit(launcher, leaves):
    """A thread of a model that sends alone may send for ever. The server waits for it as long as for any other request."""
    repository = launcher.copy_of(f"held_{time.monotonic_ns()}")
    python_catalogue.put(repository, python_catalogue.named(MODEL))
    with launcher.running(repository.name, "--exit-timeout-secs=2", repository=repository) as server, grpc_channel(server.grpc) as channel:
        stream = Stream(channel).send("self.kept.append(sender); send(text('begun'))")
        assert stream.next() == ["begun"]
        if leaves:
            stream.sent.put(None)
            stream.call.cancel()
        server.process.terminate()
        assert server.process.wait(TIMEOUT_S) == 1
        log = server.log_text()
        assert "Exit timeout expired. Exiting immediately." in log
        assert f"still waited for model '{MODEL}' (version 1) with 1 in-flight inferences. A longer --exit-timeout-secs" in log, log
