"""How are inferences run over HTTP or gRPC, by one thread at a time?

With the clients :mod:`nerite.http` and :mod:`nerite.grpc`. Tensors lie in leases or regions if possible, and are sent in the messages
otherwise. This works with any server of Triton's protocols.
"""

from __future__ import annotations

import collections
import importlib
import queue
from typing import Any, Iterator, Optional, Sequence

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _datatypes
from nerite._connection import Call, Lost
from nerite._managed import LENDER_ENDED, REGION_LOST
from nerite._messages import Metadata, Spec
from nerite._response import Head, Response
from nerite._session import bearer

# The most buffers for inputs that are kept for later calls.
HANDLES_MAX = 64


class Bearer:
    """Sends the token with each call, as a plugin of tritonclient."""

    def __init__(self, header: str):
        self._header = header

    def __call__(self, request: Any) -> None:
        request.headers["authorization"] = self._header


class PlainConnection:
    """One client of either protocol, ``"http"`` or ``"grpc"``."""

    #: The protocols' addresses do not tell one server from the next.
    server_id = ""

    def __init__(self, protocol: str, address: str, options: dict[str, Any], token: Optional[str] = None):
        self._protocol = protocol
        self._origin = importlib.import_module(f"nerite.{protocol}")
        self.client = self._origin.InferenceServerClient(address, **options)
        self.client._token = token
        header = bearer(token)
        if header:
            self.client.register_plugin(Bearer(header))
        self._timeout: Optional[float] = None
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
        if self._protocol == "http":
            found = self.client.get_model_metadata(model, version)
            return Metadata(*(tuple(spec_of(**one) for one in found.get(key, ())) for key in ("inputs", "outputs")))
        found = self.client.get_model_metadata(model, version)
        return Metadata(
            *(tuple(Spec(one.name, one.datatype, tuple(one.shape)) for one in part) for part in (found.inputs, found.outputs))
        )

    def set_timeout(self, seconds: Optional[float]) -> None:
        """Sets the timeout of an answer."""
        self._timeout = seconds

    def call(self, call: Call, key: Any) -> Response:
        """Runs one inference. After a restart of the server, buffers that it does not know any more are made again."""
        try:
            return self._call(call)
        except InferenceServerException as error:
            # The server refused the request before it ran anything.
            if not self._handles or not str(error.message()).startswith((REGION_LOST, LENDER_ENDED)):
                raise
        self._handles.clear()
        return self._call(call)

    def quick_many(self, keys: Sequence[Any], all_arrays: Sequence[Any]) -> None:
        """Does nothing: these protocols have no quick path."""

    def call_many(self, calls: Sequence[Call], key_of: Any) -> list[Any]:
        """Runs the inferences one after the other."""
        outcomes: list[Any] = []
        for call in calls:
            try:
                outcomes.append(self.call(call, None))
            except InferenceServerException as error:
                outcomes.append(error)
        return outcomes

    def stream(self, call: Call) -> Iterator[Response]:
        """The responses of a decoupled model, over gRPC. No other stream may be open on this connection."""
        if self._protocol != "grpc":
            raise InferenceServerException(
                "several responses to a request do not go over HTTP; connect to grpc://host:port, or to the server's session socket"
            )
        arrived = self._arrived = queue.SimpleQueue()
        self.client.start_stream(lambda result, error: arrived.put((result, error)))
        try:
            inputs, outputs, options = self._request(call)
            self.client.async_stream_infer(call.model, inputs, call.version, outputs, enable_empty_final_response=True, **options)
            is_last = False
            while not is_last:
                result, error = arrived.get()
                if error is not None:
                    # Errors of the model have no status.
                    if error.status() is None:
                        raise error
                    raise Lost(f"the server closed the stream before its last response: {error.message()}", sent=True) from error
                head = result.get_response()
                final = head.parameters.get("triton_final_response")
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
        return inputs, outputs, options_of(call)

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
            try:
                return self.client.infer(
                    call.model, inputs, call.version, outputs, client_timeout=self._timeout, **options
                )
            except InferenceServerException as error:
                if "Deadline Exceeded" in str(error):
                    raise TimeoutError(f"no answer within {self._timeout} s; the request was given up") from error
                raise
        import gevent

        late = TimeoutError(f"no answer within {self._timeout} s; the request was given up")
        with gevent.Timeout(self._timeout, late):
            return self.client.infer(call.model, inputs, call.version, outputs, **options)


def options_of(call: Call) -> dict[str, Any]:
    """The arguments of tritonclient's calls beside tensors."""
    given = dict(call.parameters or {})
    options: dict[str, Any] = {"request_id": call.id} if call.id else {}
    for name in ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout"):
        if name in given:
            options[name] = given.pop(name)
    if given:
        options["parameters"] = given
    return options


def response_of(result: Any, names: Sequence[str]) -> Response:
    """The outputs of these names in a result of tritonclient's."""
    arrays = {name: array for name in names if (array := result.as_numpy(name)) is not None}
    head = result.get_response()
    if isinstance(head, dict):
        return Response(arrays, Head(head.get("model_name", ""), head.get("model_version", ""), head.get("id", "")))
    return Response(arrays, Head(head.model_name, head.model_version, head.id))


def spec_of(name: str, datatype: str, shape: Sequence[Any], **_: Any) -> Spec:
    """A tensor of the metadata over HTTP."""
    return Spec(name, _datatypes.check_datatype(datatype), tuple(int(dim) for dim in shape))
