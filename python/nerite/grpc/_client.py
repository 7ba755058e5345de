"""How does the gRPC client send tensors in managed buffers?"""

from __future__ import annotations

import inspect
import threading
from typing import Any, Callable, Optional, Sequence, TypeVar

import tritonclient.grpc as origin
from tritonclient.utils import InferenceServerException

from nerite import _managed, _names
from nerite._buffers import wants_place
from nerite._deadline import Deadline, current, within
from nerite._managed import Buffers, LeasedOutputs, ManagedClient, PendingRequest, placing_for
from nerite._transports import GOODBYE_S, REGISTER_S
from nerite.grpc._tensors import InferResult

# Statuses with which the server itself refused the request. It does not use the request's buffers any more.
ANSWERS = ("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "UNIMPLEMENTED", "PERMISSION_DENIED", "UNAUTHENTICATED")
# Statuses after which it is unknown whether the server still uses the buffers.
AWAY = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN")

# The arguments of an inference after `outputs`, and which of them is its timeout. Those of `async_infer` are the same.
AFTER_OUTPUTS = list(inspect.signature(origin.InferenceServerClient.infer).parameters)[5:]
TIMEOUT_AT = AFTER_OUTPUTS.index("client_timeout")

Callback = Callable[..., Any]
Client = TypeVar("Client", bound="InferenceServerClient")


def _code(error: BaseException) -> str:
    status = error.status() if isinstance(error, InferenceServerException) else None
    return str(status).rsplit(".", 1)[-1]


def is_answer(error: BaseException) -> bool:
    """Whether the server itself refused the request."""
    return _code(error) in ANSWERS


class Stream:
    """The memory of the requests of one stream: their input buffers, and the leases that the server chooses for their outputs.

    A request may have many responses, so each output is placed anew for each response, even if its size is known.
    """

    def __init__(self, buffers: Buffers, callback: Optional[Callback] = None):
        self._buffers = buffers
        # Released at the end, with all objects that it refers to, because the library's own objects for a stream are a reference cycle.
        self._callback = callback
        self._lock = threading.Lock()
        self._pending: dict[str, list[PendingRequest]] = {}
        # There is more than one only if the session was lost and opened again.
        self._placings: list[LeasedOutputs] = []

    def begin(self, inputs: Any, outputs: Any, request_id: str) -> Any:
        """The outputs for a request."""
        pending = PendingRequest(inputs, None, self._buffers)
        if any(block is not None for block in pending.inputs):
            with self._lock:
                self._pending.setdefault(request_id, []).append(pending)
        if outputs is None or not any(wants_place(one) for one in outputs):
            return outputs
        placing = placing_for(self._buffers, self._placings[-1] if self._placings else None)
        if placing is None:
            return outputs
        if placing not in self._placings:
            self._placings.append(placing)
        return [one._placed_for(placing) if wants_place(one) else one for one in outputs]

    def is_missing(self, result: Any) -> bool:
        """Whether leases in the response must be fetched, which blocks."""
        return any(placing.is_missing(result) for placing in self._placings[-1:])

    def landed(self, result: Any, error: Any) -> None:
        """The library's callback for a response or an error."""
        if result is not None:
            try:
                result = self.land(result)
            except InferenceServerException as failure:
                result, error = None, failure
        if self._callback is not None:
            self._callback(result=result, error=error)

    def land(self, result: Any) -> InferResult:
        """Makes a result with the places of its outputs from a response. Releases input buffers after a final response."""
        made: InferResult = InferResult.unsettled(result)
        self._let_go(made.get_response())
        if self._placings:
            made._placed = self._placings[-1].settle(made)
        elif made._named_places():
            raise InferenceServerException("the response came after the stream was stopped")
        return made

    def end(self) -> None:
        """Notes that no further response will be read."""
        self._callback = None
        self._pending = {}
        placings, self._placings = self._placings, []
        for placing in placings:
            placing.give_up()

    def _let_go(self, response: Any) -> None:
        """Releases the input buffers of a request with its final response. A response without a mark is the final one."""
        parameter = response.parameters.get("triton_final_response")
        with self._lock:
            waiting = self._pending.get(response.id) if response.id else None
            if waiting and (parameter is None or parameter.bool_param):
                waiting.pop(0)
                if not waiting:
                    del self._pending[response.id]


class InferenceServerClient(ManagedClient, origin.InferenceServerClient):
    """``tritonclient.grpc.InferenceServerClient`` with managed buffers.

    Parameters beyond tritonclient's
    --------------------------------
    buffers : str
        How managed buffers are sent to the server. ``"auto"``: by the best way that works, which is tried at the first buffer. ``"lease"``,
        ``"region"``, ``"inline"``: only in this way, with an error if it does not work.
    session_socket : str
        The path of the server's session socket, for leases. By default ``NERITE_SESSION_SOCKET``, or the socket of this user's server.
    server_uid : int
        A further user whose server is trusted on the session socket, in addition to this program's own user and root. By default
        ``NERITE_SERVER_UID``. The server of any other user is not used, with a warning.

    In a stream, one request may have many responses, so the server chooses a lease for each ``InferOutput`` of each response. Without
    leases, outputs come inside the responses. A request with an id keeps its input buffers until its final response, a request without id
    until the end of the stream.
    """

    @_names.passing(origin.InferenceServerClient.__init__, "buffers", "session_socket", "server_uid")
    def __init__(
        self,
        url: str,
        *args: Any,
        buffers: str = "auto",
        session_socket: Optional[str] = None,
        server_uid: Optional[int] = None,
        **kwargs: Any,
    ):
        self._streamed: Optional[Stream] = None
        ways = _managed.chosen_ways(buffers, self._ways_offered)
        super().__init__(url, *args, **kwargs)
        self._open_buffers(url, ways, session_socket, server_uid)

    def __enter__(self: Client) -> Client:
        super().__enter__()
        return self

    def close(self) -> None:
        """Closes the client and releases its buffers at the server. Arrays over them stay valid."""
        # The attribute is missing if tritonclient's constructor failed.
        if hasattr(self, "_stream"):
            self.stop_stream()
            self._close_buffers()
            super().close()

    @_names.passing(origin.InferenceServerClient.infer)
    def infer(
        self, model_name: str, inputs: Any, model_version: str = "", outputs: Any = None, *args: Any, **kwargs: Any
    ) -> InferResult:
        """As tritonclient's; ``outputs`` may hold ``InferOutput`` objects. ``client_timeout`` includes the time to make their memory known."""
        pending, args, kwargs = self._pending_in_time(inputs, outputs, args, kwargs)
        try:
            result = super().infer(model_name, inputs, model_version, pending.outputs, *args, **kwargs)
        except BaseException as error:
            pending.lost(error, is_answer)
            raise
        return InferResult.of(result, pending)

    @_names.passing(origin.InferenceServerClient.async_infer)
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
        """As tritonclient's; ``outputs`` may hold ``InferOutput`` objects. ``client_timeout`` includes the time to make their memory known."""
        pending, args, kwargs = self._pending_in_time(inputs, outputs, args, kwargs)

        def placed(result: Any, error: Any) -> None:
            if error is not None:
                pending.lost(error, is_answer)
            else:
                try:
                    result = InferResult.of(result, pending)
                except InferenceServerException as failure:
                    result, error = None, failure
            callback(result=result, error=error)

        return super().async_infer(model_name, inputs, placed, model_version, pending.outputs, *args, **kwargs)

    @_names.passing(origin.InferenceServerClient.start_stream)
    def start_stream(self, callback: Callback, *args: Any, **kwargs: Any) -> None:
        """As tritonclient's."""
        streamed = Stream(self._lender(), callback)
        super().start_stream(streamed.landed, *args, **kwargs)
        self._streamed = streamed

    def stop_stream(self, cancel_requests: bool = False) -> None:
        """As tritonclient's."""
        super().stop_stream(cancel_requests)
        if self._streamed is not None:
            self._streamed.end()
            self._streamed = None

    @_names.passing(origin.InferenceServerClient.async_stream_infer)
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
        """As tritonclient's; ``outputs`` may hold ``InferOutput`` objects."""
        if self._streamed is not None:
            outputs = self._streamed.begin(inputs, outputs, request_id)
        super().async_stream_infer(model_name, inputs, model_version, outputs, request_id, *args, **kwargs)

    def _pending_in_time(self, inputs: Any, outputs: Any, args: Any, kwargs: Any) -> tuple[PendingRequest, Any, dict[str, Any]]:
        """The memory of a request, made within the request's timeout, and the further arguments, with the time that is left."""
        if len(args) > TIMEOUT_AT:
            kwargs = {**kwargs, **dict(zip(AFTER_OUTPUTS, args))}
            args = ()
        timeout = kwargs.get("client_timeout")
        if timeout is None:
            return self._pending_request(inputs, outputs), args, kwargs
        deadline = Deadline(timeout)
        try:
            with within(deadline):
                pending = self._pending_request(inputs, outputs)
        except TimeoutError as late:
            raise InferenceServerException("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED", str(late)) from late
        # With no time left, gRPC itself raises its error.
        return pending, args, {**kwargs, "client_timeout": deadline.left_or_zero()}

    def _extensions(self) -> Sequence[str]:
        return list(self.get_server_metadata().extensions)

    def _register_soon(self, name: str, key: str, byte_size: int) -> None:
        self.register_system_shared_memory(name, key, byte_size, client_timeout=current().left_of(REGISTER_S))

    def _unregister_soon(self, name: str) -> None:
        self.unregister_system_shared_memory(name, client_timeout=GOODBYE_S)

    def _server_is_away(self, error: BaseException) -> bool:
        # A restricted call is UNAVAILABLE too, but permanently.
        return _code(error) in (*AWAY, "None") and "restricted" not in str(error)
