"""Do decoupled models harm nobody but those who ask them, whatever they, their processes and their clients do?"""

import contextlib
import json
import os
import pathlib
import queue
import socket
import threading
import time

import pytest
from clients import TIMEOUT_S, GrpcClient, HttpClient, fp32, grpc_channel, service_stub, text
from footprint import wait_until
from frames import DATA, END_HEADERS, END_STREAM, HEADERS, WINDOW_UPDATE, call_head, frame, message, open_connection
from python_setup import serving, strings

MODEL = "py_decoupled"
FOREVER = "for n in range(1 << 40):\n    if sender.is_cancelled(): break\n    send(numbers(*[n] * 20000))\nsend(flags=FINAL)"
IN_A_THREAD = "def later_work():\n" + "".join(f"    {line}\n" for line in FOREVER.split("\n")) + "threading.Thread(target=later_work).start()"


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 does not bound what waits for a client, and starts no process anew")
    with serving(launcher, "decoupled_hostile", MODEL, "py_identity") as found:
        yield found


class Stream:
    """One stream of responses."""

    def __init__(self, server):
        self.open = contextlib.ExitStack()
        channel = self.open.enter_context(grpc_channel(server.grpc))
        self.client, self.sent = GrpcClient(channel), queue.Queue()
        self.call = service_stub(channel).ModelStreamInfer(iter(self.sent.get, None), timeout=TIMEOUT_S)

    def send(self, code: str, id: str = "") -> "Stream":
        parameters = {"triton_enable_empty_final_response": True}
        self.sent.put(self.client.request(MODEL, [text("CODE", [code.encode()])], id=id, parameters=parameters))
        return self

    def next(self):
        return next(self.call)

    def close(self):
        self.sent.put(None)
        self.call.cancel()
        self.open.close()


def resident(pid: int) -> int:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10


def model_process(server) -> int:
    return value_in_process(server, "os.getpid()")


def value_in_process(server, what: str) -> int:
    """What this is in the process of the model."""
    stream = Stream(server).send(f"send(text({what}), FINAL)")
    try:
        return int(strings(stream.next().infer_response.raw_output_contents[0])[0])
    finally:
        stream.close()


def generate(server, code: str) -> socket.socket:
    """A generate_stream whose answer nobody reads."""
    host, _, port = server.http.rpartition(":")
    body = b'{"CODE": %s}' % json.dumps(code).encode()
    made = socket.create_connection((host, int(port)))
    head = f"POST /v2/models/{MODEL}/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    made.sendall(head.encode() + body)
    return made


@pytest.mark.parametrize("way", ["generate_stream", "grpc"])
def test_a_model_that_is_faster_than_its_client_waits_for_it(server, way):
    """80 KB each time, for ever, to a client that reads nothing."""
    assert model_process(server)
    before = resident(server.pid)
    unread = generate(server, IN_A_THREAD) if way == "generate_stream" else Stream(server).send(IN_A_THREAD)
    time.sleep(1.0)
    early = resident(server.pid)
    time.sleep(3.0)
    # Sockets and windows are full by now; a model that did not wait would have made a gigabyte.
    assert resident(server.pid) - early < 16 << 20, (before, early)
    # The model answers others meanwhile.
    began = time.monotonic()
    assert model_process(server)
    assert time.monotonic() - began < 2.0
    unread.close()


MANY = "for n in range(2000):\n    send(numbers(*[n] * 1000))\nsend(flags=FINAL)"


def begun(server, way: str, code: str):
    """A request for many responses, none of which is read."""
    return generate(server, code) if way == "generate_stream" else Stream(server).send(code)


def read_all(unread) -> tuple[int, bool]:
    """How many responses with outputs come to the end, and whether an error says that they were not read."""
    if isinstance(unread, Stream):
        count = 0
        for one in unread.call:
            count += bool(one.infer_response.outputs)
            if one.error_message or one.infer_response.parameters["triton_final_response"].bool_param:
                return count, "the client does not read: " in one.error_message
        raise AssertionError("no last response")
    unread.settimeout(TIMEOUT_S)
    found = bytearray()
    while not found.endswith(b"\r\n0\r\n\r\n"):
        piece = unread.recv(1 << 20)
        assert piece, "no end of the answer"
        found += piece
    return found.count(b'"MORE":['), b"the client does not read: " in found


@pytest.mark.parametrize("way", ["generate_stream", "grpc"])
@pytest.mark.parametrize(("code", "is_ended"), [(MANY, False), (FOREVER, True)], ids=["many", "for_ever"])
def test_a_client_that_does_not_read_keeps_the_instance_from_nobody(server, way, code, is_ended):
    """`execute` itself sends 2,000 responses of 4 KB, which the server keeps, or 80 KB for ever, which end the request. Others are answered by the only
    instance before anything is read: `FOREVER` lets go of it only because it sees that its request is over."""
    unread = begun(server, way, code)
    time.sleep(0.3)
    for _ in range(3):
        assert model_process(server)
    # The connection lives, so the others did not wait for its end.
    count, ended = read_all(unread)
    assert ended == is_ended and (count == 2000 or is_ended and count > 500), (count, ended)
    unread.close()


@pytest.mark.parametrize("code", [FOREVER, IN_A_THREAD], ids=["execute", "thread"])
def test_the_request_of_a_client_that_does_not_read_ends_with_the_numbers(server, code):
    """That of a thread ends as well while the process has another request."""
    other = Stream(server).send("self.kept.append(sender)\nsend(text('begun'))")
    assert strings(other.next().infer_response.raw_output_contents[0]) == ["begun"]
    stream = Stream(server).send(code)
    assert not stream.next().error_message
    # Answered once `execute` has ended, or while the thread runs. Nobody reads until that has ended as well.
    wait_until(lambda: not value_in_process(server, "sum('later_work' in one.name for one in threading.enumerate())"))
    text = next(one.error_message for one in stream.call if one.error_message)
    assert "the client does not read: " in text and "the server keeps 67108864 bytes at most" in text, text
    for one in (stream, other, Stream(server).send("self.kept.clear()\nsend(flags=FINAL)")):
        one.close()


SEND_ALL = """
import queue
if not hasattr(self, 'sends'):
    self.sends = queue.Queue()
    def later_sends():
        while True:
            whose, what = self.sends.get()
            whose.send(*what)
    threading.Thread(target=later_sends, daemon=True).start()
for n in range({count}):
    self.sends.put((sender, (numbers(*[n] * 1000),)))
self.sends.put((sender, (None, FINAL)))
"""


def test_one_thread_that_answers_all_requests_goes_on(server):
    """As the models do that collect the requests of all clients for an engine of their own."""
    unread = Stream(server).send(SEND_ALL.format(count=2000))
    time.sleep(0.3)
    reads = Stream(server).send(SEND_ALL.format(count=10))
    answers = [reads.next() for _ in range(11)]
    assert answers[-1].infer_response.parameters["triton_final_response"].bool_param
    reads.close()
    unread.close()


class OneAtATime(threading.Thread):
    """The client of one gRPC stream. It lets the server send one response of SEND_ALL in 5 ms."""

    def __init__(self, server, code: str):
        super().__init__(daemon=True)
        self.taken, self.ended = 0, threading.Event()
        with grpc_channel(server.grpc) as channel:
            request = GrpcClient(channel).request(MODEL, [text("CODE", [code.encode()])])
        self.socket = open_connection(server.grpc, initial_window=0)
        call = frame(HEADERS, END_HEADERS, 1, call_head("ModelStreamInfer"))
        self.socket.sendall(call + frame(DATA, END_STREAM, 1, message(request.SerializeToString())))

    def run(self) -> None:
        one_response = (4300).to_bytes(4, "big")
        with self.socket:
            while not self.ended.is_set():
                time.sleep(0.005)
                self.socket.sendall(b"".join(frame(WINDOW_UPDATE, 0, stream, one_response) for stream in (0, 1)))
                assert self.socket.recv(1 << 20)
                self.taken += 1


def test_one_thread_that_answers_all_requests_does_not_go_at_the_pace_of_a_client(server):
    """The client takes each response within the time that the thread may wait for it."""
    count, whole_window = 2000, 100
    # Its connection is made first, so that nothing keeps the slow client from its pace later.
    reads = Stream(server).send("send(text('begun'), FINAL)")
    assert strings(reads.next().infer_response.raw_output_contents[0]) == ["begun"]
    slow = OneAtATime(server, SEND_ALL.format(count=count))
    slow.start()
    wait_until(lambda: slow.taken >= whole_window)
    reads.send(SEND_ALL.format(count=10))
    answers = [reads.next() for _ in range(11)]
    assert answers[-1].infer_response.parameters["triton_final_response"].bool_param
    # The thread sends these responses after all of the other client's, most of which that client has not taken yet.
    assert slow.is_alive() and slow.taken < count / 2, slow.taken
    slow.ended.set()
    slow.join()
    reads.close()


def test_a_process_that_is_killed_takes_its_open_requests_along_and_no_other(server):
    streams = [Stream(server).send("later(60, lambda: None)\nself.kept.append(sender)\nsend(text('begun'))", id=str(n)) for n in range(5)]
    for one in streams:
        assert strings(one.next().infer_response.raw_output_contents[0]) == ["begun"]
    os.kill(model_process(server), 9)
    for one in streams:
        last = one.next()
        assert "is not healthy" in last.error_message and "SIGKILL" in last.error_message, last
        assert last.infer_response.parameters["triton_final_response"].bool_param
        one.close()
    # The next request starts another process.
    assert model_process(server)


def test_a_process_that_kills_itself_between_two_responses(server):
    for _ in range(5):
        stream = Stream(server).send("send(text('a'))\nos.kill(os.getpid(), signal.SIGKILL)")
        found = [stream.next(), stream.next()]
        assert strings(found[0].infer_response.raw_output_contents[0]) == ["a"]
        assert "is not healthy" in found[1].error_message, found
        stream.close()
    assert model_process(server)


def test_clients_that_vanish_leave_nothing_behind(server):
    process = model_process(server)

    def vanish(n):
        stream = Stream(server).send(IN_A_THREAD)
        stream.next()
        stream.close()

    threads = [threading.Thread(target=vanish, args=(n,)) for n in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    deadline = time.monotonic() + TIMEOUT_S
    tasks = pathlib.Path(f"/proc/{process}/task")
    # Threads of the model end, because they see that their clients went.
    while len(list(tasks.iterdir())) > 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list(tasks.iterdir())) <= 6
    assert model_process(server) == process


NONSENSE = """
import socket
for descriptor in os.listdir('/proc/self/fd'):
    try:
        one = socket.socket(fileno=os.dup(int(descriptor)))
    except OSError:
        continue
    if one.type == socket.SOCK_SEQPACKET:
        for packet in (b'{', b'[]', b'{"respond":1}', b'{"call":-1,"respond":99999999,"final":true}', b'\\xff' * 100,
                       b'{"release":18446744073709551615}', b'{"call":7,"place":[1,2]}', b'{"call":7,"place":[99999,"SAID",5]}'):
            try:
                one.send(packet, socket.MSG_DONTWAIT)
            except OSError:
                pass
send(text('alive'), FINAL)
"""


def test_a_model_that_writes_nonsense_to_its_channels_harms_only_itself(server):
    stream = Stream(server).send(NONSENSE)
    assert stream.next() is not None
    stream.close()
    reply = HttpClient(server.http).infer("py_identity", [fp32("INPUT0", [1])])
    assert reply.outputs["OUTPUT0"].raw == fp32("", [1]).raw
    assert model_process(server)
