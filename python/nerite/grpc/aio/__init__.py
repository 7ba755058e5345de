"""What has ``tritonclient.grpc.aio``, and managed buffers besides?

The calls are those of ``nerite.grpc``; ``infer`` is awaited, those about buffers are not: borrowing memory from the server takes
microseconds. Registering a region would take a request of its own, so buffers travel as leases or inline here. A request of a
stream needs its handles kept until it is answered.
"""

from typing import Any, Optional

import tritonclient.grpc.aio as _origin
from tritonclient.grpc.aio import *  # noqa: F403

from nerite import _managed, _names
from nerite._managed import ManagedClient
from nerite.grpc._client import is_answer
from nerite.grpc._tensors import InferInput, InferOutput, InferResult


class InferenceServerClient(ManagedClient, _origin.InferenceServerClient):
    """``tritonclient.grpc.aio.InferenceServerClient`` with managed buffers.

    ``buffers`` and ``session_socket`` are those of ``nerite.grpc.InferenceServerClient``; ``buffers="region"`` is refused.
    """

    _ways_offered = ("lease", "inline")

    def __init__(
        self, url: str, *args: Any, buffers: str = "auto", session_socket: Optional[str] = None, **kwargs: Any
    ):
        ways = _managed.chosen_ways(buffers, self._ways_offered)
        super().__init__(url, *args, **kwargs)
        self._open_buffers(url, ways, session_socket)

    async def close(self) -> None:
        """Closes the client and returns its buffers. Arrays over them stay valid."""
        self._close_buffers()
        await super().close()

    async def infer(
        self, model_name: str, inputs: Any, model_version: str = "", outputs: Any = None, *args: Any, **kwargs: Any
    ) -> InferResult:
        """As tritonclient's; ``outputs`` may hold ``InferOutput`` objects."""
        flight = self._flight(inputs, outputs)
        try:
            result = await super().infer(model_name, inputs, model_version, flight.outputs, *args, **kwargs)
        except BaseException as error:
            flight.lost(error, is_answer)
            raise
        return InferResult.of(result, flight)


_names.adopt(globals(), _origin)
__getattr__ = _names.fallback(__name__, _origin)
__all__ = [*getattr(_origin, "__all__", ()), "InferInput", "InferOutput", "InferResult", "InferenceServerClient"]
