"""Are leases used again after a restart of the server, also where they are the only way?"""

import asyncio
import time

import numpy as np
import pytest
import servers
from peers import module
from tritonclient.utils import InferenceServerException

import nerite
from nerite import _plain_loop_connection

# What an error of a server that is away says: HTTP, gRPC, and the session socket.
AWAY = "the server has gone|failed to connect|no session at|Cannot connect|refused"


@pytest.fixture
def restarted(launcher, monkeypatch):
    """A server, and a function that starts another one at its addresses."""
    monkeypatch.setattr(_plain_loop_connection, "_loop_of_grpc", None)
    first = launcher.fresh("nerite")
    ports = [int(first.url(one).rsplit(":", 1)[1]) for one in ("http", "grpc")]
    free_ports = servers.free_ports

    def start():
        with monkeypatch.context() as patch:
            patch.setattr(servers, "free_ports", lambda count: [*ports, *free_ports(count - len(ports))])
            again = launcher.fresh("nerite", f"--session-socket={first.session_socket}")
        assert (again.http, again.grpc) == (first.http, first.grpc)
        return again

    return first, start


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "found"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_asyncio_with_leases_alone_finds_a_server_that_was_started_anew(restarted, protocol, is_named, monkeypatch):
    first, start = restarted
    monkeypatch.setenv("NERITE_SESSION_SOCKET", first.session_socket)
    with nerite.connect(f"{protocol}://{first.url(protocol)}", buffers="lease") as made:
        made._socket_path = first.session_socket if is_named else None
        # Calls go over the protocol, as from a server that had no session when the client was made.
        made._session_path = None
        identity = made.model("identity_fp32")

        async def infer():
            assert (await identity.aio([1.0])).OUTPUT0.tolist() == [1]
            (connection,) = made._loops.values()
            assert connection._client._buffers.way() == "lease"
            await asyncio.to_thread(servers.stop, first.process)
            for number in range(2):
                with pytest.raises((ConnectionError, InferenceServerException), match=AWAY):
                    await identity.aio([2.0] * (number + 1))
            start()
            for number in range(3):
                assert (await identity.aio([number, 4.0, 5.0], timeout=30)).OUTPUT0.tolist() == [number, 4, 5]
            assert connection._client._buffers.way() == "lease"

        asyncio.run(infer())


@pytest.mark.parametrize("buffers", ["lease", "auto"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_of_asyncio_borrows_again_after_a_restart(restarted, protocol, buffers, monkeypatch):
    first, start = restarted
    monkeypatch.setenv("NERITE_SESSION_SOCKET", first.session_socket)
    m = module(protocol)
    m.aio = __import__(f"nerite.{protocol}.aio", fromlist=["aio"])

    async def infer():
        async with m.aio.InferenceServerClient(first.url(protocol), buffers=buffers) as client:

            async def one(value):
                handle = client.register_input_tensor_with_shared_memory([4], "FP32")
                client.copy_to_shared_memory(handle, np.full(4, value, np.float32))
                given = m.InferInput("INPUT0", [4], "FP32").set_shared_memory_request(handle)
                return handle, (await client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0")])).as_numpy("OUTPUT0").tolist()

            handle, found = await one(1)
            assert handle.is_shared and found == [1] * 4
            await asyncio.to_thread(servers.stop, first.process)
            with pytest.raises(Exception, match=f"(?i){AWAY}"):
                await one(2)
            start()
            until = time.monotonic() + 30
            while True:
                try:
                    handle, found = await one(3)
                    break
                except InferenceServerException as error:
                    # The drop-in client waits as tritonclient does: gRPC connects again a second after it failed.
                    assert "failed to connect" in str(error) and time.monotonic() < until, error
                    await asyncio.sleep(0.05)
            assert handle.is_shared and found == [3] * 4

    asyncio.run(infer())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_with_leases_alone_may_be_made_before_its_server(restarted, protocol):
    first, start = restarted
    servers.stop(first.process)
    with first.client(protocol, buffers="lease") as client:
        with pytest.raises(InferenceServerException, match="no session at"):
            client.register_input_tensor_with_shared_memory([4], "FP32")
        start()
        assert client.register_input_tensor_with_shared_memory([4], "FP32").is_shared
