"""How is a model called as a function?"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from typing import Any, AsyncIterator, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _convert, _datatypes, _parameters, _trace
from nerite._buffers import heap_block
from nerite._calls import CALLS_MAX
from nerite._connection import Call, Input, Lost, NoLoopConnection, Stale, element_dtype
from nerite._deadline import deadline_of
from nerite._expiry import Queued
from nerite._messages import Metadata, Spec
from nerite._pool import Block
from nerite._response import Response
from nerite._streams import Reader

# The most attempts of an inference, if the model changes each time.
TRIES_MAX = 3
# The most shapes whose keys are kept.
KEYS_MAX = 256
# The text of every server of Triton's protocols for a model that it does not have.
UNKNOWN_MODEL = "Request for unknown model"
_ndarray = np.ndarray
# In the key of a plan: an input that is copied to the memory of the plan's slot.
_NO_BLOCK = 0
# Of a call without parameters, id, sequence and span.
_NO_OPTIONS = (None, "", None, None)


class Model:
    """A model of the server, which is called like a function. See :func:`nerite.connect`.

    ``model(array)`` and ``model(name=array)`` return a :class:`Response`. Inputs are numpy arrays, or objects with DLPack,
    ``__array__``, the buffer protocol or Arrow's C data and stream interfaces (PyTorch, JAX, CuPy, pandas, pyarrow, memoryview), or (nested)
    lists and numbers. A column of Arrow with several chunks is joined first, which is one copy more. Arrays on a device are accepted if
    their library copies them to the host (DLPack 1.0). Arrays are converted to the model's datatype if no value can be lost. A whole number of
    Python's is accepted if the datatype represents it exactly. A floating-point datatype also accepts Python's floats. It rounds them, but refuses
    a float that would become infinite or 0. Strings (``str`` and ``bytes``) are for BYTES.

    With ``batch=False`` the model takes single rows: inputs with one dimension less than the model's get a first dimension of 1, and the
    outputs lose theirs again. A call whose inputs have all dimensions already is not changed.

    With ``once=True`` no request is run twice. See :meth:`nerite.Client.model`.
    """

    def __init__(self, client: Any, name: str, version: str = "", batch: bool = True, once: bool = False):
        if not isinstance(name, str):
            raise TypeError(f"the name of a model is a str, got {name!r}")
        self._client = client
        self.name = name
        self.version = version
        self._batch = batch
        self._once = once
        if once and client._repeats_lost():
            raise ValueError(f"model '{name}' with once=True needs a client that sends no request again; connect without repeat_lost")
        self._metadata: Optional[Metadata] = None
        # The id of the server that described the model. After a restart the new server must describe it again.
        self._described_by = ""
        self._dtypes: dict[str, Any] = {}
        # Names and dtypes of the inputs, for calls without conversion.
        self._wanted: tuple[tuple[str, Any], ...] = ()
        # The keys of plans by the inputs' shapes, so that they need not be made anew.
        self._keys: dict[Any, Any] = {}
        self._local = threading.local()

    def __call__(
        self,
        *arrays: Any,
        outputs: Optional[Sequence[str]] = None,
        timeout: Optional[float] = None,
        parameters: Optional[Mapping[str, Any]] = None,
        id: str = "",
        sequence: Any = None,
        trace_parent: Optional[str] = None,
        trace_state: Optional[str] = None,
        **named: Any,
    ) -> Response:
        """Runs one inference.

        ``arrays`` are the inputs in the model's order, ``named`` are inputs by name. If a name is no Python identifier, the inputs can be given
        as a dict, which is the only argument. Missing inputs are read from the buffers of :meth:`input`.

        ``outputs`` are the names of the requested outputs, or the name of one, by default all. After ``timeout`` seconds the request is cancelled, and
        the call raises TimeoutError. The timeout includes connecting and waiting for a connection. ``parameters`` are for the model, ``id`` is the id of
        the request. ``sequence`` is the number or name of a sequence, or a tuple that begins with it: ``(it, "start")``, ``(it, "end")``,
        ``(it, "start", "end")``. Numbers of sequences go from 0 to 2⁶⁴−1, and whole numbers among the parameters from −2⁶³ to 2⁶³−1. Other numbers
        raise ValueError.

        ``trace_parent`` is the span that the request belongs to, as the header ``traceparent`` of W3C Trace Context has it, and ``trace_state`` the header
        ``tracestate``. The server's spans become children of that span. Malformed texts, and those of more than 512 characters, are ignored.
        """
        if outputs is None and timeout is None and not parameters and not id and sequence is None and trace_parent is None:
            response = self._quick(arrays, named)
            if response is not None:
                return response
        deadline = deadline_of(timeout)
        given = (*_named_by_dict(arrays, named), outputs, parameters, id, sequence, _trace.checked(trace_parent, trace_state))
        return self._client._run(lambda connection: self._infer(connection, given), deadline)

    def submit(self, *arrays: Any, **named: Any) -> concurrent.futures.Future[Response]:
        """As a call, but returns at once with a future of the response. Do not change the inputs before the future is done. Buffers of
        :meth:`input` cannot be written to until then. A ``timeout`` begins with the call of this method."""
        lent = [lender for lender in self._lent().values()]
        for one in lent:
            one.freeze()
        try:
            # The time in the queue counts.
            deadline = deadline_of(named.pop("timeout", None))
            call = functools.partial(self._with(self._lent()), *arrays, timeout=deadline if deadline else None, **named)
            future = Queued(call, deadline).submit(self._client._threads())
        except BaseException:
            for one in lent:
                one.thaw()
            raise
        future.add_done_callback(lambda _: [one.thaw() for one in lent])
        return future

    def batch(
        self,
        requests: Iterable[Any],
        outputs: Optional[Sequence[str]] = None,
        timeout: Optional[float] = None,
        return_errors: bool = False,
    ) -> list[Any]:
        """Runs many inferences, 32 in one packet. Each is a dict of inputs, a tuple of inputs in order, or the only input.

        Returns one response for each, in order. The first error is raised when all are done. With ``return_errors``, an error is returned
        in the place of its response. ``timeout`` is for all requests together. An input that cannot be converted is an error of its request only.
        Buffers of :meth:`input` cannot be written to until this method returns.
        """
        deadline = deadline_of(timeout)
        todo = list(requests)
        outcomes: list[Any] = []
        lent = [*getattr(self._local, "lent", {}).values()]
        for one in lent:
            one.freeze()
        try:
            for first in range(0, len(todo), CALLS_MAX):
                part = todo[first : first + CALLS_MAX]
                outcomes += self._client._run(lambda connection, part=part: self._infer_many(connection, part, outputs), deadline)
        finally:
            for one in lent:
                one.thaw()
        if not return_errors and any([issubclass(kind, Exception) for kind in set(map(type, outcomes))]):
            for one in outcomes:
                if isinstance(one, Exception):
                    raise one
        return outcomes

    async def aio(
        self,
        *arrays: Any,
        outputs: Optional[Sequence[str]] = None,
        timeout: Optional[float] = None,
        parameters: Optional[Mapping[str, Any]] = None,
        id: str = "",
        sequence: Any = None,
        trace_parent: Optional[str] = None,
        trace_state: Optional[str] = None,
        **named: Any,
    ) -> Response:
        """As a call, for asyncio. No thread waits: all calls of a loop share one session with at most 192 in flight, or one client of HTTP or gRPC, where
        tensors go in leases or in the messages. If the task is cancelled, the server is notified, and the call's memory is used again when the model
        has ended. Some calls wait in a thread: with ``buffers="region"``, with options of :func:`nerite.connect` that the clients for asyncio do not have,
        and over gRPC on every event loop of a process except the first.

        Do not change the inputs before the call is done. Buffers of :meth:`input` cannot be written to until then.
        """
        deadline = deadline_of(timeout)
        arrays, named = _named_by_dict(arrays, named)
        given, lent = (arrays, named, outputs, parameters, id, sequence, _trace.checked(trace_parent, trace_state)), dict(self._lent())
        for one in lent.values():
            one.freeze()
        try:
            call = self._client._run_async(lambda connection: self._infer_async(connection, given, lent))
            if not deadline:
                return await call
            try:
                return await asyncio.wait_for(call, deadline.left())
            except asyncio.TimeoutError as late:
                raise deadline.late() from late
        except NoLoopConnection:
            pass
        finally:
            for one in lent.values():
                one.thaw()
        options: Any = {"outputs": outputs, "timeout": deadline, "parameters": parameters, "id": id, "sequence": sequence}
        options |= {"trace_parent": trace_parent, "trace_state": trace_state}
        return await asyncio.wrap_future(self.submit(*arrays, **options, **named))

    def stream(
        self,
        *arrays: Any,
        outputs: Optional[Sequence[str]] = None,
        timeout: Optional[float] = None,
        parameters: Optional[Mapping[str, Any]] = None,
        id: str = "",
        sequence: Any = None,
        trace_parent: Optional[str] = None,
        trace_state: Optional[str] = None,
        **named: Any,
    ) -> Iterator[Response]:
        """The responses of a decoupled model, which sends any number of them: over a session or gRPC. The arguments are those of a call. ``timeout`` is
        for all responses together.

        If the server ends meanwhile, ConnectionError is raised in place of the next response, and the stream is over. The request is not sent again. A
        client has at most 32 streams open. If it has as many, a thread waits until one ends. A thread that reads a stream itself gets an error at once,
        because it could wait for itself.
        """
        deadline = deadline_of(timeout)
        given = (*_named_by_dict(arrays, named), outputs, parameters, id, sequence, _trace.checked(trace_parent, trace_state))
        yield from self._client._stream(self._start(given, Reader()), deadline)

    async def aio_stream(
        self,
        *arrays: Any,
        outputs: Optional[Sequence[str]] = None,
        timeout: Optional[float] = None,
        parameters: Optional[Mapping[str, Any]] = None,
        id: str = "",
        sequence: Any = None,
        trace_parent: Optional[str] = None,
        trace_state: Optional[str] = None,
        **named: Any,
    ) -> AsyncIterator[Response]:
        """As :meth:`stream`, for ``async for``. Each stream waits in a thread. Calls use other threads. If the task is cancelled, the request is cancelled
        too. While 32 streams of the client are open, further tasks wait without a thread. A task that reads a stream gets an error at once."""
        deadline, reader, done = deadline_of(timeout), Reader(), object()
        trace = _trace.checked(trace_parent, trace_state)
        start = self._start((*_named_by_dict(arrays, named), outputs, parameters, id, sequence, trace), reader)
        loop, executor = asyncio.get_running_loop(), self._client._stream_threads()
        async with self._client._streams.place_async(deadline) as is_first:
            responses = self._client._stream_at(start, is_first, deadline)
            try:
                while (one := await loop.run_in_executor(executor, next, responses, done)) is not done:
                    yield one
            finally:
                reader.end()
                try:
                    responses.close()
                except ValueError:
                    # A thread waits for the next response, or has just got the last one.
                    pass

    def input(self, name: str, shape: Optional[Sequence[int]] = None) -> np.ndarray:
        """The buffer that this thread's next calls read as the input ``name``. Elements that are written to it are not copied again.

        Without ``shape``, variable dimensions are 1, and with ``batch=False`` the buffer is a single row, without the batch dimension. Each call without
        this input reads the buffer, until :meth:`input` returns another one. Raises InferenceServerException for an unknown input, and
        for one of BYTES.

        While a request of :meth:`submit`, :meth:`aio` or :meth:`batch` is in flight, the array is read-only, but older views of it are not. A call of the
        model does not make the array read-only, because that would take longer than a small inference. Another thread must not write to the array until
        the call returns, or the model may read either value.

        The array stays valid when its connection ends, by a restart of the server or a timeout. From then on, calls copy it like any other array, until
        :meth:`input` returns another one. A process made by ``fork`` shares the elements with its parent, like all shared memory.
        """
        spec = next((one for one in self.inputs if one.name == name), None)
        if spec is None or spec.datatype == "BYTES":
            raise InferenceServerException(f"model '{self.name}' has no input '{name}' of a fixed element size")
        usual = spec.shape[1:] if not self._batch and spec.shape[:1] == (-1,) else spec.shape
        dims = tuple(abs(dim) for dim in usual) if shape is None else _datatypes.check_shape(shape)
        lent = _InputBuffer(self._client._lend(Spec(name, spec.datatype, dims)), Spec(name, spec.datatype, dims))
        self._lent()[name] = lent
        return lent.array

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """Name, datatype and shape of each input. -1 is a variable dimension."""
        return self._described().inputs

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """Name, datatype and shape of each output."""
        return self._described().outputs

    def help(self) -> str:
        """A text about the model's inputs and outputs."""
        given = ", ".join(f"{spec.name}=…" for spec in self.inputs)
        lines = [f"model '{self.name}': {self.name}({given})"]
        for title, specs in (("takes", self.inputs), ("gives", self.outputs)):
            lines += [f"  {title} {spec.name}: {spec.datatype} {list(spec.shape)}" for spec in specs]
        return "\n".join(lines)

    def __repr__(self) -> str:
        def shown(specs: Sequence[Spec]) -> str:
            return ", ".join(f"{one.name}: {one.datatype}{list(one.shape)}" for one in specs)

        try:
            return f"<Model '{self.name}' ({shown(self.inputs)}) -> ({shown(self.outputs)})>"
        except Exception as error:  # noqa: BLE001 - a repr says what it can
            return f"<Model '{self.name}', not described: {error}>"

    def __reduce__(self) -> Any:
        """For pickle: the same model of a client that the other process makes."""
        return type(self), (self._client, self.name, self.version, self._batch, self._once)

    # Internal steps.

    def _described(self, connection: Any = None) -> Metadata:
        # Another thread may forget it meanwhile.
        metadata = self._metadata if connection is None else self._known(connection)
        if metadata is None:
            return self._client._run(self._described_by_server) if connection is None else self._described_by_server(connection)
        return metadata

    def _known(self, connection: Any) -> Optional[Metadata]:
        """The description by the connection's server. None if that is not known."""
        return self._metadata if connection.server_id == self._described_by else None

    def _learned(self, found: Metadata, server_id: str) -> Metadata:
        """Keeps a server's description of the model."""
        self._described_by = server_id
        self._dtypes = {spec.name: None if spec.datatype == "BYTES" else element_dtype(spec.datatype) for spec in found.inputs}
        # The quick path is only for arrays that need no change, and for prepared inferences.
        quick = self._batch and not self._once and all(dtype is not None for dtype in self._dtypes.values())
        self._wanted = tuple(self._dtypes.items()) if quick else ()
        self._keys = {}
        self._metadata = found
        return found

    async def _infer_async(self, connection: Any, given: Any, lent: dict[str, _InputBuffer]) -> Response:
        """As :meth:`_infer`, for asyncio. ``lent`` are the buffers that are read."""
        for left in reversed(range(TRIES_MAX)):
            metadata = self._known(connection)
            if metadata is None:
                try:
                    found = await connection.describe_async(self.name, self.version)
                except InferenceServerException as error:
                    raise _with_server(self._client, error) from None
                metadata = self._learned(found, connection.server_id)
            call = self._call_with(lent, connection, given, metadata)
            try:
                return _without_row(call, await connection.call_async(call, self._key(call)))
            except InferenceServerException as error:
                raise _with_cure(call, _with_server(self._client, error)) from None
            except Stale:
                self._metadata, self._wanted = None, ()
                if not left:
                    raise self._unsteady() from None
        raise AssertionError("the last try raised")

    def _unsteady(self) -> InferenceServerException:
        return InferenceServerException(f"model '{self.name}' was loaded anew during each of {TRIES_MAX} attempts; try again later")

    def _start(self, given: Any, reader: Reader) -> Any:
        """A function that starts a stream on a connection, which ``reader`` has while the stream uses it. Another thread may run it."""
        lent = self._lent()

        def start(connection: Any) -> Iterator[Response]:
            with reader.uses(connection):
                call = self._call_with(lent, connection, given, self._described(connection))
                for response in connection.stream(call):
                    yield _without_row(call, response)

        return start

    def _described_by_server(self, connection: Any) -> Metadata:
        try:
            return self._learned(connection.describe(self.name, self.version), connection.server_id)
        except InferenceServerException as error:
            raise _with_server(self._client, error) from None

    def _quick(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Optional[Response]:
        """Runs the call if every input is a numpy array of the model's datatype, in shapes that were used before. None if not."""
        found = self._as_they_are(arrays, named)
        if found is None:
            return None
        key, arrays = found
        try:
            return self._client._quick(key, arrays, lambda connection: self._call(connection, (arrays, {}, None, *_NO_OPTIONS)))
        except Stale:
            self._metadata, self._wanted = None, ()
        except Lost as lost:
            if lost.sent and not self._client._repeats_lost():
                raise
        # Nothing was run.
        return None

    def _as_they_are(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Optional[tuple[Any, Sequence[np.ndarray]]]:
        """The key of the plan, and the arrays in the model's order. None if an array needs a conversion."""
        wanted = self._wanted
        if len(arrays) + len(named) != len(wanted) or not wanted or (arrays and named):
            return None
        if named:
            try:
                arrays = [named[name] for name in self._dtypes]
            except KeyError:
                return None
        shapes: Any = ()
        for array, (_, dtype) in zip(arrays, wanted):
            if type(array) is not _ndarray or array.dtype != dtype:
                return None
            shapes += (array.shape,)
        return self._keys.get(shapes) or self._new_key(shapes), arrays

    def _new_key(self, shapes: tuple[tuple[int, ...], ...]) -> Any:
        """The key of the plan for inputs of these shapes that are copied."""
        if len(self._keys) >= KEYS_MAX:
            self._keys.clear()
        places = tuple((name, shape, _NO_BLOCK) for (name, _), shape in zip(self._wanted, shapes))
        key = self._keys[shapes] = (self.name, self.version, (), places)
        return key

    def _quick_many(self, connection: Any, requests: Sequence[Any]) -> Optional[list[Any]]:
        """As :meth:`_quick`, for many requests. An answer that is not the expected one is returned as ``(slot, answer)``."""
        wanted = self._wanted
        columns = _columns(requests, [name for name, _ in wanted])
        if columns is not None:
            shapes = tuple([_only_shape(column, dtype) for column, (_, dtype) in zip(columns, wanted)])
            if None not in shapes:
                return connection.quick_equal(self._keys.get(shapes) or self._new_key(shapes), columns, len(requests))
        found = [self._as_they_are(*_split(one)) for one in requests]
        return None if None in found else connection.quick_many(*map(list, zip(*found)))  # type: ignore[arg-type]

    def _infer(self, connection: Any, given: Any) -> Response:
        for left in reversed(range(TRIES_MAX)):
            call = self._call(connection, given)
            try:
                return _without_row(call, connection.call(call, self._key(call)))
            except InferenceServerException as error:
                raise _with_cure(call, _with_server(self._client, error)) from None
            except Stale:
                # The request was not run. The model may have been reloaded with other tensors.
                self._metadata, self._wanted = None, ()
                if not left:
                    raise self._unsteady() from None
        raise AssertionError("the last try raised")

    def _infer_many(self, connection: Any, requests: Sequence[Any], outputs: Any) -> list[Any]:
        if outputs is None and (found := self._quick_many(connection, requests)) is not None:
            if tuple not in map(type, found):
                return found
            return [
                self._looked_at(connection, one, _split(requests[index])) if type(one) is tuple else one
                for index, one in enumerate(found)
            ]
        split = [_split(one) for one in requests]
        calls: list[Any] = []
        for arrays, named in split:
            try:
                calls.append(self._call(connection, (arrays, named, outputs, *_NO_OPTIONS)))
            except (InferenceServerException, TypeError) as error:
                # The other requests run all the same.
                calls.append(error)
        sent = [one for one in calls if isinstance(one, Call)]
        answered = iter(connection.call_many(sent, self._key) if sent else ())
        outcomes = [next(answered) if isinstance(one, Call) else one for one in calls]
        for index, (call, one) in enumerate(zip(calls, outcomes)):
            if isinstance(one, InferenceServerException) and isinstance(call, Call):
                outcomes[index] = _with_cure(call, _with_server(self._client, one))
            elif not isinstance(one, Exception):
                outcomes[index] = _without_row(call, one)
        return [self._unless_stale(connection, one, split[index], outputs) for index, one in enumerate(outcomes)]

    def _looked_at(self, connection: Any, found: Any, request: Any) -> Any:
        """The result of one of many calls, whose answer is not the expected one."""
        slot, answer = found
        call = self._call(connection, (*request, None, *_NO_OPTIONS))
        outcome = connection._caught(connection._settle, slot, call, self._key(call), answer)
        return self._unless_stale(connection, outcome, request, None)

    def _unless_stale(self, connection: Any, outcome: Any, request: Any, outputs: Any) -> Any:
        """The result, or that of another attempt if the request was not run."""
        if not isinstance(outcome, Stale):
            return outcome
        self._metadata, self._wanted = None, ()
        return connection._caught(self._infer, connection, (*request, outputs, *_NO_OPTIONS))

    def _call_with(self, lent: dict[str, _InputBuffer], connection: Any, given: Any, metadata: Metadata) -> Call:
        """The call with the buffers of the calling thread."""
        own, self._local.lent = self._lent(), lent
        try:
            return self._call(connection, given, metadata)
        finally:
            self._local.lent = own

    def _call(self, connection: Any, given: Any, metadata: Optional[Metadata] = None) -> Call:
        """The call. Without ``metadata`` it may wait for the server to describe the model."""
        arrays, named, outputs, parameters, id, sequence, trace = given
        if metadata is None:
            metadata = self._described(connection)
        specs = metadata.inputs
        if len(arrays) > len(specs):
            raise TypeError(f"model '{self.name}' takes {len(specs)} inputs, {len(arrays)} were given")
        values = {spec.name: array for spec, array in zip(specs, arrays)} if arrays else named
        if arrays and named:
            if twice := values.keys() & named.keys():
                raise TypeError(f"input '{min(twice)}' of model '{self.name}' was given twice")
            values.update(named)
        inputs, is_row, read = [], False, []
        for spec in specs:
            if spec.name in values:
                given_dims, one = self._input(spec, values[spec.name], connection)
                is_row = is_row or given_dims < len(one.spec.shape)
                inputs.append(one)
            elif (lent := self._lent().get(spec.name)) is not None:
                array = self._with_row(spec, lent.array)
                is_row = is_row or array is not lent.array
                inputs.append(Input(Spec(spec.name, lent.spec.datatype, array.shape), array, lent.block_at(connection)))
                read.append(lent)
        if len(inputs) - len(read) < len(values):
            unknown = sorted(set(values) - {spec.name for spec in specs})
            raise TypeError(f"model '{self.name}' has no input '{unknown[0]}', it takes {', '.join(spec.name for spec in specs)}")
        wanted = () if outputs is None else (outputs,) if isinstance(outputs, str) else tuple(outputs)
        if not isinstance(id, str):
            raise TypeError(f"the id of a request is a str, got {id!r}")
        checked = _parameters.checked(parameters, sequence)
        return Call(self.name, self.version, metadata, inputs, wanted, id, checked, is_row, read, self._once, trace)

    def _input(self, spec: Spec, value: Any, connection: Any) -> tuple[int, Input]:
        """The number of dimensions that were given, and the input."""
        # Another thread may learn other inputs meanwhile, so `self._dtypes` is not used here.
        wanted = None if spec.datatype == "BYTES" else element_dtype(spec.datatype)
        if type(value) is np.ndarray and wanted is not None and value.dtype == wanted:
            array = value
        else:
            try:
                array, dtype = _convert.elements(value, spec.datatype, connection.note_copy)
            except InferenceServerException as refused:
                raise InferenceServerException(f"input '{spec.name}': {refused.message()}") from refused
            if wanted is not None:
                array = np.asarray(array).astype(dtype, copy=False)
        dims, array = array.ndim, self._with_row(spec, array)
        at = Spec(spec.name, spec.datatype, array.shape)
        return dims, Input(at, _datatypes.encoded_elements(array) if spec.datatype == "BYTES" else array, None)

    def _with_row(self, spec: Spec, array: np.ndarray) -> np.ndarray:
        """The array, with a first dimension of 1 if it is a single row and ``batch=False`` was given."""
        is_row = not self._batch and spec.shape[:1] == (-1,) and array.ndim == len(spec.shape) - 1
        return array[None] if is_row else array

    def _key(self, call: Call) -> Any:
        if not call.is_plain():
            return None
        return call.model, call.version, call.outputs, tuple((one.spec.name, one.spec.shape, _NO_BLOCK if one.block is None else id(one.block)) for one in call.inputs)

    def _lent(self) -> dict[str, _InputBuffer]:
        try:
            return self._local.lent
        except AttributeError:
            self._local.lent = {}
            return self._local.lent

    def _with(self, lent: dict[str, _InputBuffer]) -> Any:
        """A function that runs the call in another thread, with the buffers of this thread."""
        given, running = dict(lent), self._client._thread
        may_wait = self._client._may_wait(in_thread=False)

        def call(*arrays: Any, **named: Any) -> Response:
            self._local.lent, running.caller_reads = given, not may_wait
            try:
                return self(*arrays, **named)
            finally:
                self._local.lent, running.caller_reads = {}, False

        return call


class _InputBuffer:
    """The buffer of a thread for an input."""

    def __init__(self, block: Optional[Block], spec: Spec):
        size = _datatypes.fixed_byte_size(spec.shape, spec.datatype) or 0
        #: None if each call copies the bytes, because memory cannot be shared.
        self.block = block
        self.spec = spec
        memory = (block or heap_block(size)).array()
        self.array = memory[:size].view(element_dtype(spec.datatype)).reshape(spec.shape)
        self._in_flight = 0
        self._lock = threading.Lock()

    def block_at(self, connection: Any) -> Optional[Block]:
        """The memory, if the connection's server can read it where it lies. None if the elements must be copied: the memory ends
        with the session that borrowed it, and after a restart the server does not know memory of the previous server."""
        owner = None if self.block is None else self.block.slab.owner
        if owner is None or owner is connection:
            return self.block
        if not owner.is_alive():
            self.block = None
        return self.block if owner.server_id == connection.server_id else None

    def freeze(self) -> None:
        """Makes it read-only, because a request in flight reads it."""
        with self._lock:
            self._in_flight += 1
            self.array.flags.writeable = False

    def thaw(self) -> None:
        """Makes it writable again after the request."""
        with self._lock:
            self._in_flight -= 1
            if not self._in_flight:
                self.array.flags.writeable = True


def is_unknown_model(error: Exception) -> bool:
    """Whether a server says that it does not have the model."""
    return isinstance(error, InferenceServerException) and (error.message() or "").startswith(UNKNOWN_MODEL)


def _with_server(client: Any, error: InferenceServerException) -> InferenceServerException:
    """The error, with the server that was asked if it does not know the model: another server may have it."""
    if not is_unknown_model(error):
        return error
    text = f"{error.message()} (the server asked is at {client._where})"
    return InferenceServerException(text, error.status(), error.debug_details())


def _with_cure(call: Call, error: InferenceServerException) -> InferenceServerException:
    """The error, with the cure added if inputs seem to lack the batch dimension."""
    if isinstance(error, ConnectionError):
        return error
    specs = {spec.name: spec.shape for spec in call.metadata.inputs}
    for one in call.inputs:
        shape, wanted = one.spec.shape, specs.get(one.spec.name, ())
        if len(wanted) > 1 and wanted[0] == -1 and len(shape) == len(wanted) - 1:
            text = (
                f"{error.message()} (input '{one.spec.name}' has shape {list(shape)}, the model takes {list(wanted)}: give it a first dimension, "
                f"or take the model by client.model('{call.model}', batch=False))"
            )
            return InferenceServerException(text, error.status(), error.debug_details())
    return error


def _named_by_dict(arrays: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs in order and by name. A dict as the only argument has them by name, also if an argument has the same name."""
    return ((), {**arrays[0], **named}) if len(arrays) == 1 and type(arrays[0]) is dict else (arrays, named)


def _split(request: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs of one of many requests: in order, and by name."""
    if type(request) is _ndarray:
        return (request,), {}
    return ((), request) if isinstance(request, dict) else (request, {}) if isinstance(request, tuple) else ((request,), {})


def _columns(requests: Sequence[Any], names: Sequence[str]) -> Optional[Sequence[Sequence[Any]]]:
    """For each input, the values from all these requests. None if the requests do not have the same inputs."""
    kind = type(requests[0])
    if kind is _ndarray:
        return [requests] if len(names) == 1 else None
    if not names or set(map(type, requests)) != {kind} or kind not in (tuple, dict) or set(map(len, requests)) != {len(names)}:
        return None
    try:
        return list(zip(*requests)) if kind is tuple else [[one[name] for one in requests] for name in names]
    except KeyError:
        return None


def _only_shape(arrays: Sequence[Any], dtype: Any) -> Optional[tuple[int, ...]]:
    """The shape of all of them, if each is an array of that dtype. None if not. There is no function call for each, because this is a large part of what a
    small inference costs."""
    if type(arrays[0]) is not _ndarray:
        return None
    shape: tuple[int, ...] = arrays[0].shape
    for one in arrays:
        # Equal dtypes are mostly the same object.
        if type(one) is not _ndarray or one.dtype is not dtype or one.shape != shape:
            return None
    return shape


def _without_row(call: Call, response: Response) -> Response:
    """The response to a call whose inputs got a first dimension of 1, without that dimension."""
    if call.is_row:
        arrays = response._arrays
        for spec in call.metadata.outputs:
            array = arrays.get(spec.name)
            if array is not None and spec.shape[:1] == (-1,) and array.shape[:1] == (1,):
                arrays[spec.name] = array.reshape(array.shape[1:])
    return response
