"""Does a compiled backend read and write the memory of its client itself, does it hear that the client has gone, and what if it throws?"""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from clients import Given, RequestedOutput, fp32, grpc_channel, http_call, open_client, refuses, service_stub
from compiled_setup import SOURCES, put, serving, workers_of
from regions import registered
from servers import ROOT
from test_copies import copying
from witness import any_client

COUNT = 1 << 18
SIZE = 4 * COUNT
WAITS = 7.0
KILLS = 5
REQUESTS = 20

# A client that asks for a canary that never comes, until it is killed.
ENDLESS = """
import sys
sys.path.insert(0, sys.argv[1])
from clients import Given, RequestedOutput, open_client
from regions import registered
import types
server = types.SimpleNamespace(http=sys.argv[2], grpc=sys.argv[3])
with open_client(sys.argv[4], server) as client, registered(client, 2 * 4096, name=sys.argv[5]) as made:
    print(made.path, flush=True)
    client.infer("canary", [Given("IN", "FP32", [1024], region=(made.name, 4096, 0))], [RequestedOutput("OUT", (made.name, 4096, 4096))])
"""


@pytest.fixture(scope="module", params=["server", "process"])
def waiting(request: pytest.FixtureRequest, launcher, tmp_path_factory):
    """In the server's process, and each instance in a process of its own."""
    if launcher.oracle:
        pytest.skip("of this server")
    name = f"waiting_{request.param}"
    repository = launcher.scratch / name
    for mode in ("canary", "request", "factory"):
        put(repository, mode, mode, backend="waiting")
    put(repository, "asking", backend="asking")
    put(repository, "well")
    put(repository, "addresses", "addresses", isolated="true" if request.param == "process" else "false")
    socket = tmp_path_factory.mktemp("waiting") / "socket"
    flags = [f"--session-socket={socket}"] + ["--backend-config=waiting,isolated=true"] * (request.param == "process")
    with serving(launcher, name, repository, *flags, sources=("waiting", "asking", "sample")) as found:
        found.session, found.is_isolated = socket, request.param == "process"
        yield found


def wait_for(is_so, what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


@contextlib.contextmanager
def in_background(call, *arguments, **more):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit(call, *arguments, **more).result


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_canary_reaches_the_backend_in_memory_of_the_client(waiting, protocol):
    values = np.arange(1, COUNT + 1, dtype=np.float32)
    with open_client(protocol, waiting) as client, registered(client, 2 * SIZE) as made, copying(waiting):
        given, outputs = [Given("IN", "FP32", [COUNT], region=(made.name, SIZE, 0))], [RequestedOutput("OUT", (made.name, SIZE, SIZE))]
        with in_background(client.infer, "canary", given, outputs) as reply:
            wait_for(lambda: np.frombuffer(made.read(4, SIZE), np.float32)[0] == WAITS, "the backend writes into the region")
            # The request was sent long ago. What is written now reaches the backend only if nobody has copied the input.
            made.write(values[1:].tobytes(), 4)
            made.write(values[:1].tobytes())
            reply()
        assert made.read(SIZE, SIZE) == values.tobytes()


def mapped_at(pid: int, address: int) -> tuple[int, int] | None:
    """The inode that a process has mapped at an address, and the offset in it."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        for span, _, offset, _, inode, *_ in map(str.split, maps):
            start, end = (int(one, 16) for one in span.split("-"))
            if start <= address < end:
                return int(inode), int(offset, 16) + address - start
    return None


@pytest.mark.parametrize("chooses", ["client", "server"])
def test_a_backend_gets_the_addresses_of_leases(waiting, chooses):
    with any_client("session", waiting) as client:
        lease = client.borrow(2 * SIZE, b"\x02" * SIZE)
        given = [Given("IN", "FP32", [COUNT], region=(lease.name, SIZE, 0))]
        # In a lease of the server's choice the output lies at an offset that the server chooses.
        outputs, leased = ([RequestedOutput("OUT", (lease.name, SIZE, SIZE))], ()) if chooses == "client" else (None, ["OUT"])
        with copying(waiting):
            for _ in range(REQUESTS):
                reply = client.infer("addresses", given, outputs, leased=leased)
        assert (lease.read(SIZE, SIZE) if chooses == "client" else reply.outputs["OUT"].raw) == b"\x02" * SIZE
        inodes = {os.fstat(one.descriptor).st_ino for one in client.leases.values()}
        processes = workers_of(waiting) if waiting.is_isolated else [waiting.pid]
        own = os.fstat(lease.descriptor).st_ino
        found = [(mapped_at(pid, reply.parameters["in_address"]), mapped_at(pid, reply.parameters["out_address"])) for pid in processes]
        (place,) = [out for given, out in found if given == (own, 0)]
        assert place == (own, SIZE) if chooses == "client" else place[0] in inodes - {own}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_clients_are_killed_while_the_backend_has_their_memory(waiting, protocol):
    for at in range(KILLS):
        name = f"killed_{protocol}_{at}"
        command = [sys.executable, "-c", ENDLESS, str(ROOT / "tests" / "conformance"), waiting.http, waiting.grpc, protocol, name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            path = client.stdout.readline().strip()

            def waits() -> bool:
                with open(path, "rb") as region:
                    region.seek(4096)
                    return np.frombuffer(region.read(4), np.float32)[0] == WAITS

            wait_for(waits, "the backend has the request")
            client.send_signal(signal.SIGKILL)
        if at % 2:
            os.truncate(path, 0)
        os.unlink(path)
        with open_client("http", waiting) as other:
            assert other.infer("well", [fp32("IN", [at])]).outputs["OUT"].raw == fp32("", [at]).raw
    # The one instance is free again: it heard each time that its client had gone.
    test_a_canary_reaches_the_backend_in_memory_of_the_client(waiting, protocol)
    with open_client("http", waiting) as other:
        wait_for(lambda: all_unregistered(other, protocol), "no region of the killed is in use")


def all_unregistered(client, protocol: str) -> bool:
    with contextlib.suppress(Exception):
        for at in range(KILLS):
            client.unregister("system", f"killed_{protocol}_{at}")
        return True
    return False


@pytest.mark.parametrize("model", ["request", "factory"])
def test_a_backend_hears_that_its_client_has_cancelled(waiting, model):
    with grpc_channel(waiting.grpc) as channel, open_client("grpc", waiting) as client:
        future = service_stub(channel).ModelInfer.future(client.request(model, [fp32("IN", [1])], None, id=f"{model}_1"))
        wait_for(lambda: f"request '{model}_1' waits" in waiting.log_text(), "the backend has the request")
        assert "cancelled" not in waiting.log_text().partition(f"request '{model}_1' waits")[2]
        future.cancel()
        wait_for(lambda: f"request '{model}_1' is cancelled" in waiting.log_text(), "the backend hears of it")


@pytest.mark.parametrize("model", ["request", "factory"])
def test_a_backend_cancels_what_it_asked(waiting, model):
    with open_client("http", waiting) as client, refuses("CANCELLED", ""):
        client.infer("asking", [fp32("IN", [1])], parameters={"target": model, "cancel": 1, "wait": 1, "id": f"{model}_asked"})
    # It runs, or was taken back before it ran.
    log = waiting.log_text()
    assert f"request '{model}_asked' waits" not in log or f"request '{model}_asked' is cancelled" in log


def throwing(launcher, name: str, *flags: str):
    repository, backends = launcher.scratch / name, launcher.scratch / f"{name}_backends"
    put(repository, "throwing", backend="throwing")
    put(repository, "well")
    library = backends / "throwing" / "libtriton_throwing.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["c++", "-fPIC", "-shared", str(SOURCES / "throwing.cc"), "-o", str(library)], check=True)
    return serving(launcher, name, repository, *flags)


def test_an_exception_costs_its_request_in_a_process_of_its_own(launcher):
    if launcher.oracle:
        pytest.skip("of this server")
    with throwing(launcher, "throws_apart", "--backend-config=throwing,isolated=true") as server, open_client("http", server) as client:
        for _ in range(2):
            with refuses("INTERNAL", "model 'throwing' of backend 'throwing', isolated instance 'throwing_0': its process was ended by signal 6 (SIGABRT)"):
                client.infer("throwing", [fp32("IN", [1])])
            assert client.infer("well", [fp32("IN", [1])]).outputs["OUT"].raw == fp32("", [1]).raw
        wait_for(lambda: "backend 'throwing': an exception left one of its functions" in server.log_text(), server.log_text())
        assert http_call(server.http, "GET", "/v2/health/live").status == 200


def test_an_exception_ends_the_server_with_the_name_of_the_backend(launcher):
    if launcher.oracle:
        pytest.skip("of this server")
    with throwing(launcher, "throws_here") as server, open_client("http", server) as client:
        with pytest.raises(Exception):
            client.infer("throwing", [fp32("IN", [1])])
        assert server.process.wait(30) == -signal.SIGABRT
        assert "backend 'throwing': an exception left one of its functions" in server.log_text()


def test_a_backend_that_aborts_is_named(launcher):
    if launcher.oracle:
        pytest.skip("of this server")
    repository = launcher.scratch / "aborts"
    put(repository, "die", "die")
    with serving(launcher, "aborts", repository) as server, open_client("http", server) as client:
        with pytest.raises(Exception):
            client.infer("die", [fp32("IN", [2])])
        assert server.process.wait(30) == -signal.SIGABRT
        assert "error: backend 'sample' aborts the process" in server.log_text()


def test_an_abort_on_a_thread_of_the_backends_own_names_what_is_loaded(launcher):
    if launcher.oracle:
        pytest.skip("of this server")
    repository = launcher.scratch / "aborts_apart"
    put(repository, "thread", "thread", backend="careless")
    with serving(launcher, "aborts_apart", repository, sources=("careless",)) as server, open_client("http", server) as client:
        with pytest.raises(Exception):
            client.infer("thread", [fp32("IN", [2])])
        assert server.process.wait(30) == -signal.SIGABRT
        assert "it may be one of a backend's own. Loaded are: 'careless'." in server.log_text()


def test_sigabrt_from_another_process_ends_the_server(launcher):
    if launcher.oracle:
        pytest.skip("of this server")
    repository = launcher.scratch / "aborted"
    put(repository, "well")
    with serving(launcher, "aborted", repository) as server:
        os.kill(server.pid, signal.SIGABRT)
        assert server.process.wait(30) == -signal.SIGABRT
        assert "aborts the process" not in server.log_text()
        assert "the process is aborted on a thread" not in server.log_text()
