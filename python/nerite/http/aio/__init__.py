"""Where is ``tritonclient.http.aio`` with managed buffers?

The calls are those of ``nerite.http``. ``infer`` is awaited. Calls about buffers are not, because borrowing memory from the server takes
microseconds. The steps of ``infer`` that may wait for the server run in a thread. Registering a region would need another request, so
buffers are sent as leases or inline here.
"""

from typing import Any, Optional, TypeVar

import tritonclient.http.aio as _origin
from tritonclient.http.aio import *  # noqa: F403

from nerite import _managed, _names
from nerite._blocking_steps import LOOP_ANSWER_S, AsideClient
from nerite.http._client import is_answer
from nerite.http._tensors import InferInput, InferOutput, InferResult


Client = TypeVar("Client", bound="InferenceServerClient")


class InferenceServerClient(AsideClient, _origin.InferenceServerClient):
    """``tritonclient.http.aio.InferenceServerClient`` with managed buffers.

    ``buffers``, ``session_socket`` and ``server_uid`` are those of ``nerite.http.InferenceServerClient``; ``buffers="region"`` is refused.
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
        return list((await self.get_server_metadata())["extensions"])

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

_names.adopt(globals(), _origin)
__getattr__ = _names.fallback(__name__, _origin)
__all__ = [*getattr(_origin, "__all__", ()), "InferInput", "InferOutput", "InferResult", "InferenceServerClient"]
