"""Does a client of a fleet use the replica on its host while there is one, and is nothing run twice when it goes?

Plain servers play the replicas and the proxy. The tests write the fleet's file themselves.
"""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import pickle
import signal
import tempfile
import threading

import fleet_models
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import nerite
from nerite import _fleet_client

# The most time for what takes a part of it.
WAIT_S = 60
CALLS, THREADS = 60, 4


class Fleet:
    """A fleet on this host."""

    def __init__(self, folder, repository, proxy):
        self.path, self.runs, self.proxy = folder / "fleet-digits.json", repository.parent / "runs", proxy
        self._repository, self.ends = repository, contextlib.ExitStack()
        self.names()

    def replica(self, repository=None):
        return self.ends.enter_context(fleet_models.served(repository or self._repository))

    def names(self, *replicas, **changed):
        """Writes the file, as an actor of the fleet does."""
        content = {"http": self.proxy.http, "grpc": self.proxy.grpc, "sessions": [one.session_socket for one in replicas], **changed}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(content))
        os.rename(new, self.path)

    def connect(self, **options):
        return self.ends.enter_context(nerite.connect("fleet:digits", **options))

    def ran(self):
        return [int(line) for line in self.runs.read_text().split()]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return fleet_models.make(tmp_path_factory.mktemp("fleet") / "models", *fleet_models.MODELS)


@pytest.fixture(scope="module")
def proxy(repository):
    with fleet_models.served(repository) as server:
        yield server


@pytest.fixture(scope="module")
def lasting(repository):
    """A replica that no test kills."""
    with fleet_models.served(repository) as server:
        yield server


@pytest.fixture
def fleet(monkeypatch, repository, proxy, tmp_path):
    # Each call looks at the file, and at a replica that failed.
    monkeypatch.setattr(_fleet_client, "LOOK_S", 0)
    monkeypatch.setattr(_fleet_client, "RETRY_S", 0)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "nerite").mkdir(mode=0o700)
    (repository.parent / "runs").write_text("")
    made = Fleet(tmp_path / "nerite", repository, proxy)
    with made.ends:
        yield made


def kill(server):
    os.kill(server.pid, signal.SIGKILL)
    # The process is this one's child. Until it is reaped, its sockets may still be open.
    server._process.wait()


def one(number):
    return np.array([number], np.int64)


def test_the_replica_of_the_host_is_used_while_it_is_there(fleet, lasting):
    first = fleet.replica()
    fleet.names(first)
    client = fleet.connect()
    counts = client.model("counts")
    assert [counts(one(number)).OUT[0] for number in range(3)] == [0, 1, 2]
    assert client.transport == "session" and repr(client) == "<nerite client of fleet:digits>"
    kill(first)
    assert [counts(one(number)).OUT[0] for number in range(3, 6)] == [3, 4, 5]
    assert client.transport == "inline"
    fleet.names(lasting)
    assert [counts(one(number)).OUT[0] for number in range(6, 9)] == [6, 7, 8]
    assert client.transport == "session"
    fleet.names()
    assert counts(one(9)).OUT[0] == 9 and client.transport == "inline"
    assert fleet.ran() == list(range(10))


def test_the_variable_names_the_fleet_or_its_file(fleet, lasting, monkeypatch):
    fleet.names(lasting)
    for value in ("digits", str(fleet.path)):
        monkeypatch.setenv("NERITE_FLEET", value)
        with nerite.connect() as client:
            assert client.transport == "session" and client.model("counts").outputs
    with nerite.connect(fleet.proxy.http_url) as client:
        assert client.transport != "session"


def test_without_a_replica_on_the_host_all_goes_through_the_proxy(fleet):
    with nerite.connect("fleet:digits") as client:
        assert client.model("counts")(one(1)).OUT[0] == 1 and client.transport == "inline"
    fleet.names(sessions=["/no/such.sock"])
    with nerite.connect("fleet:digits") as client:
        assert client.model("counts")(one(2)).OUT[0] == 2 and client.transport == "inline"
        with pytest.raises(InferenceServerException, match="'misspelt' is not found .the server asked is at fleet:digits"):
            client.model("misspelt")


def test_the_last_servers_are_used_while_the_file_is_gone_or_broken(fleet, lasting):
    fleet.names(lasting)
    client = fleet.connect()
    fleet.path.write_text("{")
    assert client.transport == "session"
    fleet.path.unlink()
    assert client.model("counts")(one(1)).OUT[0] == 1 and client.transport == "session"


def test_a_new_address_of_the_proxy_is_used(fleet, lasting):
    client = fleet.connect()
    counts = client.model("counts")
    before = counts(one(1)).OUT[1]
    fleet.names(http=lasting.http, grpc=lasting.grpc)
    assert counts(one(1)).OUT[1] != before and client.transport == "inline"


@pytest.mark.parametrize("repeat_lost", [False, True])
def test_a_replica_is_killed_during_calls_of_threads(fleet, repeat_lost):
    replica, some = fleet.replica(), threading.Semaphore(0)
    fleet.names(replica)
    client = fleet.connect(repeat_lost=repeat_lost)
    counts, answered, lost = client.model("counts"), [], []

    def calls(thread):
        for number in range(thread * CALLS, (thread + 1) * CALLS):
            try:
                assert counts(one(number)).OUT[0] == number
                answered.append(number)
            except ConnectionError:
                lost.append(number)
            some.release()

    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        running = [threads.submit(calls, thread) for thread in range(THREADS)]
        for _ in range(CALLS):
            assert some.acquire(timeout=WAIT_S)
        kill(replica)
        for each in running:
            each.result(WAIT_S)
    ran = fleet.ran()
    assert sorted(answered + lost) == list(range(THREADS * CALLS)) and set(answered) <= set(ran)
    assert client.transport == "inline"
    if repeat_lost:
        assert not lost and len(ran) - len(set(ran)) <= THREADS
    else:
        assert len(lost) <= THREADS and len(ran) == len(set(ran))


def test_a_replica_is_killed_during_calls_of_asyncio(fleet):
    replica = fleet.replica()
    fleet.names(replica)
    client = fleet.connect()
    counts = client.model("counts")

    async def main():
        return [*await asyncio.gather(*(call(number) for number in range(CALLS)), return_exceptions=True), (await counts.aio(one(CALLS))).OUT[0]]

    async def call(number):
        answer = await counts.aio(one(number))
        if number == CALLS // 2:
            kill(replica)
        return answer.OUT[0]

    outcomes = asyncio.run(main())
    assert all(outcome == number or isinstance(outcome, ConnectionError) for number, outcome in enumerate(outcomes))
    assert outcomes[-1] == CALLS and client.transport == "inline"
    ran = fleet.ran()
    assert len(ran) == len(set(ran))


def test_futures_and_batches_go_on_through_the_proxy(fleet):
    replica = fleet.replica()
    fleet.names(replica)
    counts = fleet.connect().model("counts")
    assert [found.OUT[0] for found in counts.batch([one(number) for number in range(40)])] == list(range(40))
    assert counts.submit(one(40)).result(WAIT_S).OUT[0] == 40
    kill(replica)
    assert [found.OUT[0] for found in counts.batch([one(number) for number in range(41, 81)])] == list(range(41, 81))
    assert counts.submit(one(81)).result(WAIT_S).OUT[0] == 81
    assert sorted(fleet.ran()) == list(range(82))


def test_streams_go_on_through_the_proxy(fleet):
    replica = fleet.replica()
    fleet.names(replica)
    client = fleet.connect()
    streams = client.model("streams")
    assert [found.OUT[0] for found in streams.stream(one(1))] == [1, 2]
    cut = streams.stream(one(-1))
    assert next(cut).OUT[0] == -1
    kill(replica)
    with pytest.raises(ConnectionError):
        next(cut)
    assert [found.OUT[0] for found in streams.stream(one(3))] == [3, 4]

    async def read():
        return [found.OUT[0] async for found in streams.aio_stream(one(5))]

    assert asyncio.run(read()) == [5, 6]
    assert fleet.ran() == [1, -1, 3, 5] and client.transport == "inline"


def test_a_lent_buffer_of_a_killed_replica_is_copied(fleet, lasting):
    replica = fleet.replica()
    fleet.names(replica)
    client = fleet.connect()
    identity = client.model("identity")
    buffer = identity.input("INPUT0", [16])
    for number in range(3):
        buffer[:] = number
        assert identity().OUTPUT0.tolist() == [number] * 16
    assert client.copied_bytes == 0
    kill(replica)
    for number in range(3, 6):
        buffer[:] = number
        assert identity().OUTPUT0.tolist() == [number] * 16
    assert client.copied_bytes == 3 * 64 and client.transport == "inline"
    fleet.names(lasting)
    assert identity().OUTPUT0.tolist() == [5] * 16
    assert client.copied_bytes == 4 * 64 and client.transport == "session"
    identity.input("INPUT0", [16])[:] = 6
    assert [identity().OUTPUT0.tolist() for _ in range(3)] == [[6] * 16] * 3
    assert client.copied_bytes == 4 * 64


def test_a_buffer_that_was_made_without_a_replica_is_copied(fleet):
    client = fleet.connect()
    identity = client.model("identity")
    identity.input("INPUT0", [16])[:] = 1
    assert identity().OUTPUT0.tolist() == [1] * 16 and client.copied_bytes == 64


def test_a_sequence_stays_with_its_server(fleet, lasting):
    replica = fleet.replica()
    fleet.names(replica)
    client = fleet.connect()
    sums = client.model("sums")
    assert sums(one(1), sequence=(7, "start")).OUT[0] == 1
    fleet.names(lasting)
    assert sums(one(2), sequence=7).OUT[0] == 3, "its replica is not in the file any more, and still there"
    assert sums(one(5), sequence=("s", "start")).OUT[0] == 5
    kill(replica)
    for _ in range(2):
        with pytest.raises(InferenceServerException, match=f"sequence 7 of model 'sums' began at the replica '{replica.session_socket}'.*: start it again"):
            sums(one(3), sequence=7)
    assert sums(one(6), sequence="s").OUT[0] == 11
    fleet.names()
    assert sums(one(1), sequence=(7, "start")).OUT[0] == 1
    fleet.names(lasting)
    assert client.transport == "session"
    assert sums(one(4), sequence=7).OUT[0] == 5, "it goes on through the proxy"
    assert asyncio.run(sums.aio(one(4), sequence=(7, "end"))).OUT[0] == 9


def test_threads_spread_over_the_replicas_of_the_host(fleet, lasting):
    fleet.names(lasting, fleet.replica())
    counts = fleet.connect().model("counts")
    together = threading.Barrier(2)

    def calls(number):
        together.wait(WAIT_S)
        # Shapes and kinds of inputs differ, so that both ways of a call are used.
        return {counts(given).OUT[1] for given in (one(number), [number], one(number), np.array([number, 1]))}

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first, second = threads.map(calls, range(2))
    assert len(first) == len(second) == 1 and first != second


def test_replicas_may_describe_a_model_differently(fleet, lasting, tmp_path):
    whole = fleet.replica(fleet_models.make(tmp_path / "models", datatype="TYPE_INT32"))
    fleet.names(whole)
    client = fleet.connect()
    identity = client.model("identity")
    floats, integers = np.full(3, 0.5, np.float32), np.arange(3, dtype=np.int32)

    def kinds(array):
        # The first call of a shape is a plain request, the others are prepared.
        return {identity(array).OUTPUT0.dtype for _ in range(3)}

    assert kinds(integers) == {np.dtype(np.int32)}
    fleet.names(whole, lasting)
    # This thread keeps its replica. The next one to choose gets the other.
    client._number = sorted([whole.session_socket, lasting.session_socket]).index(lasting.session_socket) - 1
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        assert kinds(integers) == {np.dtype(np.int32)}
        assert thread.submit(kinds, floats).result(WAIT_S) == {np.dtype(np.float32)}
        with pytest.raises(InferenceServerException, match="expected INT32"):
            identity(floats)
        assert kinds(integers) == {np.dtype(np.int32)}


def test_parent_and_child_of_a_fork_go_on(fleet, lasting):
    replica = fleet.replica()
    fleet.names(replica)
    counts = fleet.connect().model("counts")
    assert counts(one(1)).OUT[0] == 1
    fleet.names(lasting)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if counts(one(2)).OUT[0] == 2 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    kill(replica)
    assert counts(one(3)).OUT[0] == 3
    assert fleet.ran() == [1, 2, 3]


def test_a_pickled_model_connects_to_the_fleet(fleet, lasting):
    fleet.names(lasting)
    counts = fleet.connect().model("counts")
    other = pickle.loads(pickle.dumps(counts))
    with other._client as client:
        assert other(one(1)).OUT[0] == 1 and client.transport == "session"


def test_tensors_can_be_kept_out_of_shared_memory(fleet, lasting):
    fleet.names(lasting)
    client = fleet.connect(buffers="inline")
    assert client.model("counts")(one(1)).OUT[0] == 1 and client.transport == "inline"


def test_a_client_that_may_not_borrow_memory_uses_the_proxy(fleet, repository):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write('[[token]]\nname = "ci"\nsecret = "secret of ci"\nscopes = ["infer"]\n[anonymous]\nscopes = []\n')
        file.flush()
        with fleet_models.served(repository, access_tokens_file=file.name) as server:
            fleet.names(server, http=server.http, grpc=server.grpc)
            client = fleet.connect(token="secret of ci")
            identity = client.model("identity")
            floats = np.arange(3, dtype=np.float32)
            assert identity(floats).OUTPUT0.tolist() == [0, 1, 2] and client.transport == "inline"
            assert asyncio.run(identity.aio(floats)).OUTPUT0.tolist() == [0, 1, 2]


def test_a_closed_client_says_so(fleet, lasting):
    fleet.names(lasting)
    client = fleet.connect()
    counts = client.model("counts")
    counts(one(1))
    client.close()
    with pytest.raises(InferenceServerException, match="the client is closed"):
        counts(one(2))
