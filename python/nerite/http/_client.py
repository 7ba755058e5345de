"""How does the HTTP client send tensors in managed buffers?"""

from __future__ import annotations

import weakref
from typing import Any, Optional, Sequence, TypeVar

import gevent
import tritonclient.http as origin
from tritonclient.utils import InferenceServerException

from nerite import _managed, _names
from nerite._deadline import current
from nerite._managed import ManagedClient, PendingRequest
from nerite._transports import GOODBYE_S, REGISTER_S
from nerite.http._tensors import InferResult

Client = TypeVar("Client", bound="InferenceServerClient")


def is_answer(error: BaseException) -> bool:
    """Whether the server itself refused the request. If so, it does not use the request's buffers any more."""
    status = error.status() if isinstance(error, InferenceServerException) else None
    return status in ("400", "401", "403", "404", "413")


class InferAsyncRequest(origin.InferAsyncRequest):
    """``tritonclient.http.InferAsyncRequest`` whose result has the places of its outputs."""

    def __init__(self, request: origin.InferAsyncRequest, pending: PendingRequest):
        super().__init__(request._greenlet, request._verbose)
        self._pending = pending
        self._result: Optional[InferResult] = None
        # If the result is never requested, the leases of its outputs are returned.
        self._finalizer = weakref.finalize(self, pending.give_up)
        self._finalizer.atexit = False
        # The greenlet keeps the buffers if the caller drops this object before the request has ended.
        self._greenlet.rawlink(lambda _, held=pending: None)

    def get_result(self, block: bool = True, timeout: Optional[float] = None) -> InferResult:
        """As tritonclient's."""
        if self._result is None:
            try:
                result = super().get_result(block, timeout)
            except Exception as error:
                if self._greenlet.ready():
                    self._pending.lost(error, is_answer)
                raise
            self._finalizer.detach()
            self._result = InferResult.of(result, self._pending)
        return self._result


class InferenceServerClient(ManagedClient, origin.InferenceServerClient):
    """``tritonclient.http.InferenceServerClient`` with managed buffers.

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
        ways = _managed.chosen_ways(buffers, self._ways_offered)
        super().__init__(url, *args, **kwargs)
        self._open_buffers(url, ways, session_socket, server_uid)

    def __enter__(self: Client) -> Client:
        super().__enter__()
        return self

    def close(self) -> None:
        """Closes the client and releases its buffers at the server. Arrays over them stay valid."""
        if not getattr(self, "_closed", True):
            self._pool.join()
            self._close_buffers()
            super().close()

    @_names.passing(origin.InferenceServerClient.infer)
    def infer(
        self, model_name: str, inputs: Any, model_version: str = "", outputs: Any = None, *args: Any, **kwargs: Any
    ) -> InferResult:
        """As tritonclient's; ``outputs`` may hold ``InferOutput`` objects."""
        pending = self._pending_request(inputs, outputs)
        try:
            result = super().infer(model_name, inputs, model_version, pending.outputs, *args, **kwargs)
        except BaseException as error:
            pending.lost(error, is_answer)
            raise
        return InferResult.of(result, pending)

    @_names.passing(origin.InferenceServerClient.async_infer)
    def async_infer(
        self, model_name: str, inputs: Any, model_version: str = "", outputs: Any = None, *args: Any, **kwargs: Any
    ) -> InferAsyncRequest:
        """As tritonclient's; ``outputs`` may hold ``InferOutput`` objects."""
        pending = self._pending_request(inputs, outputs)
        try:
            request = super().async_infer(model_name, inputs, model_version, pending.outputs, *args, **kwargs)
        except BaseException as error:
            pending.lost(error, is_answer)
            raise
        return InferAsyncRequest(request, pending)

    def _register_soon(self, name: str, key: str, byte_size: int) -> None:
        with gevent.Timeout(current().left_of(REGISTER_S), TimeoutError):
            self.register_system_shared_memory(name, key, byte_size)

    def _unregister_soon(self, name: str) -> None:
        with gevent.Timeout(GOODBYE_S, TimeoutError):
            self.unregister_system_shared_memory(name)

    def _server_is_away(self, error: BaseException) -> bool:
        """Whether the connection failed. An error without a status means that."""
        return not isinstance(error, InferenceServerException) or error.status() is None

    def _extensions(self) -> Sequence[str]:
        return list(self.get_server_metadata()["extensions"])
