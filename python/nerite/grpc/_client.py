"""How does the gRPC client send tensors that lie in managed buffers?"""

from __future__ import annotations

from typing import Any, Callable, Optional

import tritonclient.grpc as origin
from tritonclient.utils import InferenceServerException

from nerite import _managed
from nerite._managed import Flight, ManagedClient
from nerite._transports import GOODBYE_S
from nerite.grpc._tensors import InferResult

# With these the server itself refused the request: it is done with the request's buffers.
ANSWERS = ("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "UNIMPLEMENTED", "PERMISSION_DENIED", "UNAUTHENTICATED")
# With these nobody knows what the server did.
AWAY = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN")

Callback = Callable[..., Any]


def _code(error: BaseException) -> str:
    status = error.status() if isinstance(error, InferenceServerException) else None
    return str(status).rsplit(".", 1)[-1]


def is_answer(error: BaseException) -> bool:
    """Whether the server itself refused the request."""
    return _code(error) in ANSWERS


class InferenceServerClient(ManagedClient, origin.InferenceServerClient):
    """``tritonclient.grpc.InferenceServerClient`` with managed buffers.

    Parameters beyond tritonclient's
    --------------------------------
    buffers : str
        How managed buffers reach the server. ``"auto"``: by the best way there is, found out at the first buffer. ``"lease"``,
        ``"region"``, ``"inline"``: so and not otherwise; an error if it cannot be had.
    session_socket : str
        The path of the server's session socket, for leases. By default ``NERITE_SESSION_SOCKET`` or where a server of this
        user puts it.

    Over a stream, ``InferOutput`` objects come inside the responses, for one request may have many. A request with an id
    keeps its input buffers until its final response, one without until the stream is stopped.
    """

    def __init__(
        self, url: str, *args: Any, buffers: str = "auto", session_socket: Optional[str] = None, **kwargs: Any
    ):
        self._streamed: dict[str, list[Flight]] = {}
        ways = _managed.chosen_ways(buffers, self._ways_offered)
        super().__init__(url, *args, **kwargs)
        self._open_buffers(url, ways, session_socket)

    def close(self) -> None:
        """Closes the client and tells the server to forget its buffers. Arrays over them stay valid."""
        # Not there if tritonclient's constructor failed.
        if hasattr(self, "_stream"):
            self.stop_stream()
            self._close_buffers()
            super().close()

    def infer(
        self, model_name: str, inputs: Any, model_version: str = "", outputs: Any = None, *args: Any, **kwargs: Any
    ) -> InferResult:
        """As tritonclient's; ``outputs`` may hold ``InferOutput`` objects."""
        flight = self._flight(inputs, outputs)
        try:
            result = super().infer(model_name, inputs, model_version, flight.outputs, *args, **kwargs)
        except BaseException as error:
            flight.lost(error, is_answer)
            raise
        return InferResult.of(result, flight)

    def async_infer(
        self,
        model_name: str,
        inputs: Any,
        callback: Callback,
        model_version: str = "",
        outputs: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As tritonclient's; ``outputs`` may hold ``InferOutput`` objects."""
        flight = self._flight(inputs, outputs)

        def placed(result: Any, error: Any) -> None:
            if error is not None:
                flight.lost(error, is_answer)
            callback(result=None if result is None else InferResult.of(result, flight), error=error)

        return super().async_infer(model_name, inputs, placed, model_version, flight.outputs, *args, **kwargs)

    def start_stream(self, callback: Callback, *args: Any, **kwargs: Any) -> None:
        """As tritonclient's."""
        streamed = self._streamed = {}

        def landed(result: Any, error: Any) -> None:
            if result is not None:
                _land(streamed, result.get_response())
            callback(result=result, error=error)

        super().start_stream(landed, *args, **kwargs)

    def stop_stream(self, cancel_requests: bool = False) -> None:
        """As tritonclient's."""
        super().stop_stream(cancel_requests)
        self._streamed = {}

    def async_stream_infer(
        self,
        model_name: str,
        inputs: Any,
        model_version: str = "",
        outputs: Any = None,
        request_id: str = "",
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """As tritonclient's."""
        flight = Flight(inputs, None, self._lender())
        if any(block is not None for block in flight.inputs):
            self._streamed.setdefault(request_id, []).append(flight)
        super().async_stream_infer(model_name, inputs, model_version, outputs, request_id, *args, **kwargs)

    def _unregister_soon(self, name: str) -> None:
        self.unregister_system_shared_memory(name, client_timeout=GOODBYE_S)

    def _server_is_away(self, error: BaseException) -> bool:
        # A restricted call is UNAVAILABLE as well, but for good.
        return _code(error) in (*AWAY, "None") and "restricted" not in str(error)


def _land(streamed: dict[str, list[Flight]], response: Any) -> None:
    """Lets the buffers of a request go with its final response; one that does not say whether it is final is."""
    flights = streamed.get(response.id) if response.id else None
    parameter = response.parameters.get("triton_final_response")
    if flights and (parameter is None or parameter.bool_param):
        flights.pop(0)
        if not flights:
            del streamed[response.id]
