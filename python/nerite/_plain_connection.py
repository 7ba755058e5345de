"""How are inferences run over HTTP or gRPC, by one thread at a time?

With the clients :mod:`nerite.http` and :mod:`nerite.grpc`. Tensors lie in leases or regions if possible, and are sent in the messages
otherwise. This works with any server of Triton's protocols.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import queue
from typing import Any, Callable, Iterator, Optional, Sequence, TypeVar

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _datatypes
from nerite._arrays import output
from nerite._connection import Call, Lost
from nerite._deadline import NEVER, Deadline, within
from nerite._managed import LENDER_ENDED, REGION_LOST
from nerite._messages import Metadata, Spec
from nerite._parameters import INT64_MAX, SEQUENCE_ID, UINT64_MAX
from nerite._response import Head, Response
from nerite._session import bearer

# The most buffers for inputs that are kept for later calls.
HANDLES_MAX = 64

T = TypeVar("T")
# The parameter by which a response of a stream over gRPC is marked as the last one, or not. The protocol sets this parameter, not the model.
FINAL = "triton_final_response"
# The status of a request over gRPC that has not ended in time.
LATE = "StatusCode.DEADLINE_EXCEEDED"
# The text of tritonclient for a request to a stream that has ended.
STREAM_OVER = "The stream is no longer in valid state"


class Bearer:
    """Sends the token with each call, as a plugin of tritonclient."""

    def __init__(self, header: str):
        self._header = header

    def __call__(self, request: Any) -> None:
        request.headers["authorization"] = self._header


class PlainConnection:
    """One client of either protocol, ``"http"`` or ``"grpc"``."""

    #: Empty, because an address does not show whether another server listens there now.
    server_id = ""
    #: Never true, because its buffers make new memory after a fork.
    outdated = False

    def __init__(self, protocol: str, address: str, options: dict[str, Any], token: Optional[str] = None):
        self._protocol = protocol
        self._origin = importlib.import_module(f"nerite.{protocol}")
        self.client = self._origin.InferenceServerClient(address, **options_for(protocol, options))
        self.client._token = token
        if protocol == "http":
            from nerite._sent_once import SendsOnce

            self.client._client_stub = SendsOnce(self.client._client_stub)
        header = bearer(token)
        if header:
            self.client.register_plugin(Bearer(header))
        self._deadline = NEVER
        # The buffer of each input, by name, shape and datatype.
        self._handles: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        # The responses and errors of the last stream.
        self._arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self.broken = False
        self.copied_bytes = 0

    @property
    def transport(self) -> str:
        """``lease``, ``region`` or ``inline``."""
        return self.client.buffer_transport

    def note_copy(self, byte_size: int) -> None:
        """Counts bytes of inputs that were copied before they are placed."""
        self.copied_bytes += byte_size

    def describe(self, model: str, version: str) -> Metadata:
        """The inputs and outputs of the model."""
        with self._bounded():
            describe = self._describe_http if self._protocol == "http" else self._describe_grpc
            return self._connected(lambda: describe(model, version), may_run=False)

    def _describe_http(self, model: str, version: str) -> Metadata:
        from geventhttpclient._parser import HTTPParseError

        try:
            found = self.client.get_model_metadata(model, version)
        except HTTPParseError as error:
            raise Lost(f"the server closed the connection before it answered: {error}", sent=False) from error
        return Metadata(*(tuple(spec_of(**one) for one in found.get(key, ())) for key in ("inputs", "outputs")))

    def _describe_grpc(self, model: str, version: str) -> Metadata:
        found = self.client.get_model_metadata(model, version, client_timeout=self._deadline.left())
        return Metadata(
            *(tuple(Spec(one.name, one.datatype, tuple(one.shape)) for one in part) for part in (found.inputs, found.outputs))
        )

    def limit(self, deadline: Deadline) -> None:
        """Sets the deadline of the following calls."""
        self._deadline = deadline

    def call(self, call: Call, key: Any) -> Response:
        """Runs one inference. After a restart of the server, makes new buffers for those that the new server does not know."""
        with self._bounded():
            return self._connected(lambda: self._call_with_memory(call))

    def _call_with_memory(self, call: Call) -> Response:
        try:
            return self._call(call)
        except InferenceServerException as error:
            # The server refused the request before it ran anything.
            if not self._handles or not str(error.message()).startswith((REGION_LOST, LENDER_ENDED)):
                raise
        self._handles.clear()
        return self._call(call)

    def _connected(self, step: Callable[[], T], may_run: bool = True) -> T:
        """Runs a step. Runs it once more if gRPC did not send its request for lack of a connection, and is connected now. ``may_run``: a request that was
        sent may have run a model."""
        try:
            return step()
        except InferenceServerException as error:
            if self._was_cut_off(error):
                from nerite._reconnection import settle

                settle(self._deadline.left_or_zero())
                raise Lost(f"the server closed the connection before it answered: {error.message()}", sent=may_run) from error
            if not self._connects_after(error):
                if (unreachable := self._unreachable(error)) is not None:
                    raise unreachable from error
                raise
        return step()

    def _unreachable(self, error: BaseException) -> Optional[InferenceServerException]:
        if not self._is_unsent(error):
            return None
        from nerite._reconnection import unreachable

        return unreachable(self.client._channel, error)

    def _was_cut_off(self, error: BaseException) -> bool:
        if self._protocol != "grpc":
            return False
        from nerite._reconnection import was_cut_off

        return was_cut_off(self.client._channel, error)

    def _connects_after(self, error: BaseException) -> bool:
        """Whether a request was not sent for lack of a connection, and gRPC connects now. Waits for the connection."""
        if not self._is_unsent(error):
            return False
        from nerite._reconnection import RECONNECT_S, becomes_ready

        return becomes_ready(self.client._channel, self._deadline.left_of(RECONNECT_S))

    def _is_unsent(self, error: BaseException) -> bool:
        if self._protocol != "grpc":
            return False
        from nerite._reconnection import is_unsent

        return is_unsent(error)

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """Ends the work in this block at the deadline."""
        if self._protocol == "http":
            import gevent

            with gevent.Timeout(self._deadline.left(), self._deadline.late()), within(self._deadline):
                yield
            return
        self._deadline.left()
        try:
            with within(self._deadline):
                yield
        except InferenceServerException as error:
            if self._deadline and (error.status() == LATE or self._deadline.is_over()):
                raise self._deadline.late() from error
            raise

    def quick_many(self, keys: Sequence[Any], all_arrays: Sequence[Any]) -> None:
        """Does nothing: these protocols have no quick path."""

    def quick_equal(self, key: Any, columns: Sequence[Any], count: int) -> None:
        """Does nothing, as :meth:`quick_many`."""

    def call_many(self, calls: Sequence[Call], key_of: Any) -> list[Any]:
        """Runs the inferences one after the other."""
        outcomes: list[Any] = []
        for call in calls:
            try:
                outcomes.append(self.call(call, None))
            except InferenceServerException as error:
                outcomes.append(error)
                if self._is_unsent(error):
                    # The other inferences would wait for a connection as long as this one has.
                    outcomes += [error] * (len(calls) - len(outcomes))
                    break
            except Lost as lost:
                # Earlier inferences have been run. If this one counted as unsent, the caller would send all of them again.
                raise Lost(str(lost), sent=lost.sent or bool(outcomes)) from lost
        return outcomes

    def stream(self, call: Call) -> Iterator[Response]:
        """The responses of a decoupled model, over gRPC. No other stream may be open on this connection."""
        if self._protocol != "grpc":
            raise InferenceServerException(
                "several responses to a request do not go over HTTP; connect to grpc://host:port, or to the server's session socket"
            )
        try:
            yield from self._stream(call)
            return
        except Lost as lost:
            # If the request was not sent, no response has arrived, and the stream can begin again.
            if lost.__cause__ is None or not self._connects_after(lost.__cause__):
                raise
        yield from self._stream(call)

    def _stream(self, call: Call) -> Iterator[Response]:
        arrived = self._arrived = queue.SimpleQueue()
        # Requests of a stream have no headers, so those of the stream name the span.
        headers = None if call.trace is None else call.trace.headers()
        self.client.start_stream(lambda result, error: arrived.put((result, error)), headers=headers)
        try:
            inputs, outputs, options = self._request(call)
            options.pop("headers", None)
            try:
                self.client.async_stream_infer(call.model, inputs, call.version, outputs, enable_empty_final_response=True, **options)
            except InferenceServerException as error:
                # The stream has ended before it had a request. Its own error says why, and is raised next.
                if STREAM_OVER not in str(error):
                    raise
            is_last = False
            while not is_last:
                try:
                    result, error = arrived.get(timeout=self._deadline.left())
                except queue.Empty:
                    raise self._deadline.late() from None
                if error is not None:
                    # Errors of the model have no status.
                    if error.status() is None:
                        raise error
                    raise Lost(f"the server closed the stream before its last response: {error.message()}", sent=True) from error
                head = result.get_response()
                final = head.parameters.get(FINAL)
                # Only responses of decoupled models have the parameter.
                is_last = final is None or final.bool_param
                if head.outputs or not is_last:
                    yield response_of(result, [one.name for one in head.outputs])
        finally:
            self.client.stop_stream(cancel_requests=True)

    def abort(self) -> None:
        """Ends the stream while another thread waits for a response. That thread gets :class:`Lost`."""
        self._arrived.put((None, InferenceServerException("it was given up", "cancelled")))

    def forget(self, model: str) -> None:
        """Does nothing: no state of models is kept here."""

    def close(self) -> None:
        """Closes the client."""
        self.client.close()

    def _call(self, call: Call) -> Response:
        inputs, outputs, options = self._request(call)
        result = self._infer(call, inputs, outputs, options)
        return response_of(result, call.outputs or [spec.name for spec in call.metadata.outputs])

    def _request(self, call: Call) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """The inputs and outputs for tritonclient, and the other arguments."""
        inputs = [self._input(one) for one in call.inputs]
        outputs = [self._origin.InferOutput(name) for name in call.outputs or [spec.name for spec in call.metadata.outputs]]
        return inputs, outputs, options_of(call, self._protocol)

    def _input(self, one: Any) -> Any:
        spec = one.spec
        made = self._origin.InferInput(spec.name, list(spec.shape), spec.datatype)
        key = (spec.name, spec.shape, spec.datatype)
        handle = self._handles.get(key)
        if handle is None:
            handle = self._handles[key] = self.client.register_input_tensor_with_shared_memory(spec.shape, spec.datatype)
            if len(self._handles) > HANDLES_MAX:
                self._handles.popitem(last=False)
        else:
            self._handles.move_to_end(key)
        if spec.datatype == "BYTES":
            array = np.empty(len(one.array), dtype=np.object_)
            array[:] = one.array
            handle.copy_from(array.reshape(spec.shape))
        else:
            handle.copy_from(np.ascontiguousarray(one.array))
        self.copied_bytes += handle.byte_size
        return made.set_shared_memory_request(handle)

    def _infer(self, call: Call, inputs: Any, outputs: Any, options: dict[str, Any]) -> Any:
        if self._protocol == "grpc":
            options["client_timeout"] = self._deadline.left()
        return self.client.infer(call.model, inputs, call.version, outputs, **options)


def options_for(protocol: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of the client, for a protocol."""
    if protocol != "grpc":
        return options
    from nerite._reconnection import with_backoff

    return with_backoff(options)


def options_of(call: Call, protocol: str) -> dict[str, Any]:
    """The arguments of tritonclient's calls beside tensors."""
    given = dict(call.parameters or {})
    options: dict[str, Any] = {"request_id": call.id} if call.id else {}
    for name in ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout"):
        if name in given:
            options[name] = given.pop(name)
    number = options.get(SEQUENCE_ID)
    if protocol == "grpc" and isinstance(number, int) and number > INT64_MAX:
        # tritonclient puts it into an int64. Servers read that as the unsigned number with the same bits.
        options[SEQUENCE_ID] = number - UINT64_MAX - 1
    if given:
        options["parameters"] = given
    if call.trace is not None:
        options["headers"] = call.trace.headers()
    return options


def response_of(result: Any, names: Sequence[str]) -> Response:
    """The outputs of these names in a result of tritonclient's."""
    arrays = {name: output(array) for name in names if (array := result.as_numpy(name)) is not None}
    head = result.get_response()
    if isinstance(head, dict):
        return Response(arrays, Head(head.get("model_name", ""), head.get("model_version", ""), head.get("id", ""), head.get("parameters") or {}))
    given = {name: getattr(one, one.WhichOneof("parameter_choice") or "", None) for name, one in head.parameters.items() if name != FINAL}
    return Response(arrays, Head(head.model_name, head.model_version, head.id, given))


def spec_of(name: str, datatype: str, shape: Sequence[Any], **_: Any) -> Spec:
    """A tensor of the metadata over HTTP."""
    return Spec(name, _datatypes.check_datatype(datatype), tuple(int(dim) for dim in shape))
