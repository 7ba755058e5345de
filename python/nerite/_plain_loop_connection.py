"""How are inferences run over HTTP or gRPC without a thread, for asyncio?

With the clients :mod:`nerite.http.aio` and :mod:`nerite.grpc.aio`, one for each event loop. Tensors lie in leases if there is a session, and are sent in
the messages otherwise. If a call is cancelled, its connection (HTTP) or its gRPC call ends, which notifies the server.
"""

from __future__ import annotations

import asyncio
import collections
import importlib
import weakref
from typing import Any, Awaitable, Callable, Optional, TypeVar

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite._connection import Call, Lost
from nerite._managed import LENDER_ENDED, REGION_LOST
from nerite._messages import Metadata, Spec
from nerite._plain_connection import HANDLES_MAX, Bearer, options_for, options_of, response_of, spec_of
from nerite._response import Response
from nerite._session import bearer

# The options of a client that the client for asyncio has too, by protocol.
OPTIONS = {
    "http": {"verbose", "buffers", "session_socket", "server_uid"},
    "grpc": {"verbose", "buffers", "session_socket", "server_uid", "ssl", "root_certificates", "private_key", "certificate_chain", "creds", "channel_args"},
}

T = TypeVar("T")

# The first event loop that used gRPC. The library of gRPC logs errors on other loops of the process.
_loop_of_grpc: Optional[weakref.ref[asyncio.AbstractEventLoop]] = None


def is_possible(protocol: str, options: dict[str, Any]) -> bool:
    """Whether a client for asyncio with these options can be used on the running loop."""
    global _loop_of_grpc
    if not set(options) <= OPTIONS[protocol] or options.get("buffers", "auto") == "region":
        return False
    if protocol == "grpc":
        loop = asyncio.get_running_loop()
        if _loop_of_grpc is None:
            _loop_of_grpc = weakref.ref(loop)
        return _loop_of_grpc() is loop
    return True


class PlainLoopConnection:
    """One client of either protocol for one event loop. It is made and used on that loop."""

    #: Empty, because an address does not show whether another server listens there now.
    server_id = ""
    broken = False
    #: Never true, because its buffers make new memory after a fork.
    outdated = False
    #: The number of calls that use it now.
    users = 0

    def __init__(self, protocol: str, address: str, options: dict[str, Any], token: Optional[str] = None):
        self._protocol = protocol
        self._origin = importlib.import_module(f"nerite.{protocol}.aio")
        self._client = self._origin.InferenceServerClient(address, **options_for(protocol, options))
        self._client._token = token
        header = bearer(token)
        if header:
            self._client.register_plugin(Bearer(header))
        # Buffers that no call uses, by the name, shape and datatype of their inputs.
        self._handles: collections.OrderedDict[Any, list[Any]] = collections.OrderedDict()
        self.copied_bytes = 0
        self._loop = asyncio.get_running_loop()
        # The task that closes the client. The reference keeps it from being collected before it is done.
        self._closing: Optional[asyncio.Task[None]] = None
        self._finishing = asyncio.Lock()
        self._is_finished = False

    def note_copy(self, byte_size: int) -> None:
        """Counts bytes of inputs that were copied before they are placed."""
        self.copied_bytes += byte_size

    async def open(self) -> None:
        """Finds the session for buffers."""
        await self._client._find_session()

    async def describe_async(self, model: str, version: str) -> Metadata:
        """The inputs and outputs of the model."""
        found = await self._connected(lambda: self._result_of(self._client.get_model_metadata(model, version)), may_run=False)
        if self._protocol == "http":
            return Metadata(*(tuple(spec_of(**one) for one in found.get(key, ())) for key in ("inputs", "outputs")))
        parts = (found.inputs, found.outputs)
        return Metadata(*(tuple(Spec(one.name, one.datatype, tuple(one.shape)) for one in part) for part in parts))

    async def call_async(self, call: Call, key: Any) -> Response:
        """Runs one inference. After a restart of the server, makes new buffers for those that the new server does not know."""
        return await self._connected(lambda: self._call_with_memory(call))

    async def _call_with_memory(self, call: Call) -> Response:
        try:
            return await self._call(call)
        except InferenceServerException as error:
            # The server refused the request before it ran anything.
            if not str(error.message()).startswith((REGION_LOST, LENDER_ENDED)):
                raise
        self._handles.clear()
        return await self._call(call)

    async def _connected(self, step: Callable[[], Awaitable[T]], may_run: bool = True) -> T:
        """Runs a step. Runs it once more if gRPC did not send its request for lack of a connection, and is connected now. ``may_run``: a request that was
        sent may have run a model."""
        try:
            return await step()
        except InferenceServerException as error:
            if self._protocol != "grpc":
                raise
            from nerite import _reconnection

            if _reconnection.was_cut_off(self._client._channel, error):
                await asyncio.sleep(_reconnection.SETTLE_S)
                raise Lost(f"the server closed the connection before it answered: {error.message()}", sent=may_run) from error
            if not _reconnection.is_unsent(error) or not await _reconnection.becomes_ready_async(self._client._channel):
                if (unreachable := _reconnection.unreachable(self._client._channel, error)) is not None:
                    raise unreachable from error
                raise
        return await step()

    async def finish(self) -> None:
        """Closes the client, on its loop."""
        self._handles.clear()
        self.broken = True
        async with self._finishing:
            if not self._is_finished:
                await self._client.close()
                self._is_finished = True

    def close(self) -> None:
        """Ends the use of its memory, and closes the client as soon as its loop runs. From any thread."""
        self._handles.clear()
        self.broken = True
        try:
            self._loop.call_soon_threadsafe(self._begin_to_finish)
        except RuntimeError:
            # The loop is closed. The client can be closed on its loop only.
            pass

    def _begin_to_finish(self) -> None:
        if not self._is_finished and not self._finishing.locked() and self._closing is None:
            self._closing = self._loop.create_task(self.finish())

    async def _call(self, call: Call) -> Response:
        names = call.outputs or [spec.name for spec in call.metadata.outputs]
        await self._client._find_session_again()
        handles = [self._handle(one.spec) for one in call.inputs]
        inputs = [self._input(one, handle) for one, handle in zip(call.inputs, handles)]
        outputs = [self._origin.InferOutput(name) for name in names]
        for one in call.lent:
            one.freeze()
        try:
            result = await self._result_of(self._client.infer(call.model, inputs, call.version, outputs, **options_of(call, self._protocol)))
        finally:
            for one in call.lent:
                one.thaw()
        # The buffers are used again only after a success. After an error the server may still read them.
        for one, handle in zip(call.inputs, handles):
            self._keep(one.spec, handle)
        return response_of(result, names)

    async def _result_of(self, call: Awaitable[Any]) -> Any:
        """The result of a request, or :class:`Lost` if there is no server."""
        try:
            return await call
        except Exception as error:
            if self._protocol == "http":
                import aiohttp

                # ClientPayloadError means that an answer ended within its body.
                if isinstance(error, (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)):
                    raise Lost(f"the server has gone: {error}", sent=not isinstance(error, aiohttp.ClientConnectorError)) from error
            raise

    def _handle(self, spec: Spec) -> Any:
        """A buffer for an input, which this call alone uses."""
        key = (spec.name, spec.shape, spec.datatype)
        free = self._handles.get(key)
        if free:
            handle = free.pop()
            if not free:
                del self._handles[key]
            return handle
        return self._client.register_input_tensor_with_shared_memory(spec.shape, spec.datatype)

    def _keep(self, spec: Spec, handle: Any) -> None:
        """Keeps a buffer for later calls."""
        key = (spec.name, spec.shape, spec.datatype)
        self._handles.setdefault(key, []).append(handle)
        self._handles.move_to_end(key)
        if sum(map(len, self._handles.values())) > HANDLES_MAX:
            oldest = next(iter(self._handles))
            self._handles[oldest].pop()
            if not self._handles[oldest]:
                del self._handles[oldest]

    def _input(self, one: Any, handle: Any) -> Any:
        made = self._origin.InferInput(one.spec.name, list(one.spec.shape), one.spec.datatype)
        if one.spec.datatype == "BYTES":
            array = np.empty(len(one.array), dtype=np.object_)
            array[:] = one.array
            handle.copy_from(array.reshape(one.spec.shape))
        else:
            handle.copy_from(np.ascontiguousarray(one.array))
        self.copied_bytes += handle.byte_size
        return made.set_shared_memory_request(handle)
