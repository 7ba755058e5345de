"""Where is ``tritonclient.grpc.aio`` with managed buffers?

The calls are those of ``nerite.grpc``. ``infer`` is awaited. Calls about buffers are not, because borrowing memory from the server takes
microseconds. The steps of ``infer`` that may wait for the server run in a thread. Registering a region would need another request, so
buffers are sent as leases or inline here. Handles in a stream are kept until the final response of their request, or until the end of the
stream for requests without an id.
"""

from functools import partial
from typing import Any, Optional, TypeVar

import tritonclient.grpc.aio as _origin
from tritonclient.grpc.aio import *  # noqa: F403

from nerite import _managed, _names
from nerite._blocking_steps import LOOP_ANSWER_S, AsideClient, aside
from nerite.grpc._client import Stream, is_answer
from nerite.grpc._tensors import InferInput, InferOutput, InferResult


Client = TypeVar("Client", bound="InferenceServerClient")


class InferenceServerClient(AsideClient, _origin.InferenceServerClient):
    """``tritonclient.grpc.aio.InferenceServerClient`` with managed buffers.

    ``buffers``, ``session_socket`` and ``server_uid`` are those of ``nerite.grpc.InferenceServerClient``; ``buffers="region"`` is refused.
    """

    _ways_offered = ("lease", "inline")
    _answer_s = LOOP_ANSWER_S

    @_names.passing(_origin.InferenceServerClient.__init__, "buffers", "session_socket", "server_uid")
    def __init__(
        self,
        url: str,
        *args: Any,
        buffers: str = "auto",
        session_socket: Optional[str] = None,
        server_uid: Optional[int] = None,
        **kwargs: Any,
    ):
        ways = _managed.chosen_ways(buffers, self._ways_offered)
        super().__init__(url, *args, **kwargs)
        self._open_buffers(url, ways, session_socket, server_uid)

    async def __aenter__(self: Client) -> Client:
        await self._find_session()
        await super().__aenter__()
        return self

    async def _await_extensions(self) -> Any:
        return list((await self.get_server_metadata()).extensions)

    async def close(self) -> None:
        """Closes the client and returns its buffers. Arrays over them stay valid."""
        self._close_buffers()
        await super().close()

    @_names.passing(_origin.InferenceServerClient.infer)
    async def infer(
        self, model_name: str, inputs: Any, model_version: str = "", outputs: Any = None, *args: Any, **kwargs: Any
    ) -> InferResult:
        """As tritonclient's; ``outputs`` may hold ``InferOutput`` objects."""
        pending = await self._pending_aside(inputs, outputs)
        try:
            result = await super().infer(model_name, inputs, model_version, pending.outputs, *args, **kwargs)
        except BaseException as error:
            pending.lost(error, is_answer)
            raise
        return await self._settle_aside(InferResult, result, pending)

    @_names.passing(_origin.InferenceServerClient.stream_infer)
    def stream_infer(self, inputs_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """As tritonclient's; ``outputs`` may hold ``InferOutput`` objects, for each of which the server chooses a lease."""
        stream = Stream(self._lender())
        requests = self._equipped(stream, inputs_iterator)
        return Responses(super().stream_infer(requests, *args, **kwargs), stream)

    async def _equipped(self, stream: Stream, requests: Any) -> Any:
        async for request in requests:
            if isinstance(request, dict) and "inputs" in request:
                outputs, request_id = request.get("outputs"), request.get("request_id", "")
                begin = partial(stream.begin, request["inputs"], outputs, request_id)
                request = {**request, "outputs": await aside(begin, self._at_hand(outputs))}
            yield request

class Responses:
    """The responses of a stream: pairs of a result and an error, one of which is None."""

    def __init__(self, origin: Any, stream: Stream):
        self._origin = origin
        self._stream = stream

    def __aiter__(self) -> "Responses":
        return self

    async def __anext__(self) -> tuple[Optional[InferResult], Optional[Exception]]:
        try:
            result, error = await self._origin.__anext__()
        except BaseException:
            self._stream.end()
            raise
        if result is None:
            return result, error
        land = partial(self._stream.land, result)
        try:
            return await aside(land, not self._stream.is_missing(InferResult.unsettled(result))), error
        except _origin.InferenceServerException as failure:
            return None, failure

    def cancel(self) -> Any:
        """As tritonclient's."""
        self._stream.end()
        return self._origin.cancel()


_names.adopt(globals(), _origin)
__getattr__ = _names.fallback(__name__, _origin)
__all__ = [*getattr(_origin, "__all__", ()), "InferInput", "InferOutput", "InferResult", "InferenceServerClient"]
