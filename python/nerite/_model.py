"""How is a model called as a function?"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import Any, AsyncIterator, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _convert, _datatypes
from nerite._buffers import heap_block
from nerite._connection import CALLS_MAX, Call, Input, Lost, NoLoopConnection, Stale, element_dtype
from nerite._messages import Metadata, Spec
from nerite._pool import Block
from nerite._response import Response

# The most attempts of an inference, if the model changes each time.
TRIES_MAX = 3
# The most shapes whose keys are kept.
KEYS_MAX = 256
_ndarray = np.ndarray
# In the key of a plan: an input that is copied to the memory of the plan's slot.
_NO_BLOCK = 0


class Model:
    """A model of the server, which is called like a function. See :func:`nerite.connect`.

    ``model(array)`` and ``model(name=array)`` return a :class:`Response`. Inputs are numpy arrays, or objects with DLPack,
    ``__array__``, the buffer protocol or Arrow's C data and stream interfaces (PyTorch, JAX, CuPy, pandas, pyarrow, memoryview), or (nested)
    lists and numbers. A column of Arrow with several chunks is joined first, which is one copy more. Arrays on a device are taken if
    their library copies them to the host (DLPack 1.0). They are converted to the model's datatype if no value can be lost. Strings
    (``str`` and ``bytes``) are for BYTES.

    With ``batch=False`` the model takes single rows: inputs with one dimension less than the model's get a first dimension of 1, and the
    outputs lose theirs again. A call whose inputs have all dimensions already is as without it.
    """

    def __init__(self, client: Any, name: str, version: str = "", batch: bool = True):
        if not isinstance(name, str):
            raise TypeError(f"the name of a model is a str, got {name!r}")
        self._client = client
        self.name = name
        self.version = version
        self._batch = batch
        self._metadata: Optional[Metadata] = None
        # The server that described the model. After a restart the new server is asked again.
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
        **named: Any,
    ) -> Response:
        """Runs one inference.

        ``arrays`` are the inputs in the model's order, ``named`` are inputs by name. A dict as the only argument is for names that are no
        Python identifiers. Missing inputs are read from the buffers of :meth:`input`.

        ``outputs`` are the names of the requested outputs, or the name of one, by default all. After ``timeout`` seconds the request is cancelled with a
        TimeoutError. ``parameters`` are for the model, ``id`` is the id of the request. ``sequence`` is the number or name of a sequence,
        or ``(it, "start")``, ``(it, "end")``, ``(it, "start", "end")``.
        """
        if outputs is None and timeout is None and not parameters and not id and sequence is None:
            response = self._quick(arrays, named)
            if response is not None:
                return response
        _check_timeout(timeout)
        if len(arrays) == 1 and type(arrays[0]) is dict:
            named, arrays = {**arrays[0], **named}, ()
        given = (arrays, named, outputs, parameters, id, sequence)
        return self._client._run(lambda connection: self._infer(connection, given, timeout))

    def submit(self, *arrays: Any, **named: Any) -> concurrent.futures.Future[Response]:
        """As a call, but returns at once with a future of the response. Do not change the inputs before the future is done. Buffers of
        :meth:`input` cannot be written to until then."""
        lent = [lender for lender in self._lent().values()]
        for one in lent:
            one.freeze()
        try:
            future = self._client._threads().submit(self._with(self._lent()), *arrays, **named)
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
        in the place of its response. An input that cannot be converted is an error of its request only.
        """
        _check_timeout(timeout)
        todo = [one if type(one) is not _ndarray and isinstance(one, (dict, tuple)) else (one,) for one in requests]
        outcomes: list[Any] = []
        for first in range(0, len(todo), CALLS_MAX):
            part = todo[first : first + CALLS_MAX]
            outcomes += self._client._run(lambda connection, part=part: self._infer_many(connection, part, outputs, timeout))
        for one in outcomes:
            if type(one) is not Response and isinstance(one, Exception) and not return_errors:
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
        **named: Any,
    ) -> Response:
        """As a call, for asyncio. No thread waits: all calls of a loop share one session with at most 192 in flight, or one client of HTTP or gRPC, where
        tensors go in leases or in the messages. If the task is cancelled, the server is told, and the call's memory is used again when the model has
        ended. It waits in a thread where ``buffers="region"`` or another option of :func:`nerite.connect` is for clients with threads only, and over gRPC
        on all event loops of a process but the first.

        Do not change the inputs before it is done. Buffers of :meth:`input` cannot be written to until then.
        """
        _check_timeout(timeout)
        if len(arrays) == 1 and type(arrays[0]) is dict:
            named, arrays = {**arrays[0], **named}, ()
        given, lent = (arrays, named, outputs, parameters, id, sequence), dict(self._lent())
        for one in lent.values():
            one.freeze()
        try:
            call = self._client._run_async(lambda connection: self._infer_async(connection, given, lent))
            if timeout is None:
                return await call
            try:
                return await asyncio.wait_for(call, timeout)
            except asyncio.TimeoutError as late:
                raise TimeoutError(f"no answer within {timeout} s; the request was given up") from late
        except NoLoopConnection:
            pass
        finally:
            for one in lent.values():
                one.thaw()
        options: Any = {"outputs": outputs, "timeout": timeout, "parameters": parameters, "id": id, "sequence": sequence}
        return await asyncio.wrap_future(self.submit(*arrays, **options, **named))

    def stream(self, *arrays: Any, outputs: Optional[Sequence[str]] = None, **named: Any) -> Iterator[Response]:
        """The responses of a decoupled model, which sends any number of them: over a session or gRPC.

        If the server ends meanwhile, the next response is a ConnectionError, and the stream is over. The request is not sent again.
        """
        yield from self._stream((arrays, named, outputs, None, "", None), [], threading.Lock())

    async def aio_stream(self, *arrays: Any, **named: Any) -> AsyncIterator[Response]:
        """As :meth:`stream`, for ``async for``. It waits in a thread. If the task is cancelled, the request is cancelled too."""
        outputs, used, using, done = named.pop("outputs", None), [], threading.Lock(), object()
        responses = self._stream((arrays, named, outputs, None, "", None), used, using)
        loop, executor = asyncio.get_running_loop(), self._client._threads()
        try:
            while (one := await loop.run_in_executor(executor, next, responses, done)) is not done:
                yield one  # type: ignore[misc]
        finally:
            try:
                responses.close()  # type: ignore[attr-defined]
            except ValueError:
                # A thread waits for the next response, or has just got the last one. In the latter case another call may use the connection already.
                with using:
                    for connection in used:
                        connection.abort()

    def input(self, name: str, shape: Optional[Sequence[int]] = None) -> np.ndarray:
        """The buffer that this thread's next calls read as the input ``name``. Elements that are written to it are not copied again.

        Without ``shape``, variable dimensions are 1. Each call without this input reads the buffer, until :meth:`input` returns another
        one. It is not for BYTES. While a request is in flight (:meth:`submit`), the array is read-only, but older views of it are not.

        The array stays valid when its connection ends, by a restart of the server or a timeout. Calls read it then as any other array, with a
        copy, until :meth:`input` returns another one. A process made by ``fork`` shares its elements with its parent, as all shared memory.
        """
        spec = next((one for one in self.inputs if one.name == name), None)
        if spec is None or spec.datatype == "BYTES":
            raise InferenceServerException(f"model '{self.name}' has no input '{name}' of a fixed element size")
        dims = tuple(abs(dim) for dim in spec.shape) if shape is None else _datatypes.check_shape(shape)
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
        return Model, (self._client, self.name, self.version, self._batch)

    # Internal steps.

    def _described(self, connection: Any = None) -> Metadata:
        # Another thread may forget it meanwhile.
        metadata = self._metadata
        if metadata is None or (connection is not None and connection.server_id != self._described_by):
            return self._learned(*(self._client._run(self._fetch_metadata) if connection is None else self._described_at(connection)))
        return metadata

    def _learned(self, found: Metadata, server_id: str) -> Metadata:
        """Keeps a server's description of the model."""
        self._described_by = server_id
        self._dtypes = {spec.name: None if spec.datatype == "BYTES" else element_dtype(spec.datatype) for spec in found.inputs}
        # The quick path is only for arrays that need no change.
        quick = self._batch and all(dtype is not None for dtype in self._dtypes.values())
        self._wanted = tuple(self._dtypes.items()) if quick else ()
        self._keys = {}
        self._metadata = found
        return found

    async def _infer_async(self, connection: Any, given: Any, lent: dict[str, _InputBuffer]) -> Response:
        """As :meth:`_ask`, for asyncio. ``lent`` are the buffers that are read."""
        for left in reversed(range(TRIES_MAX)):
            metadata = self._metadata
            if metadata is None or connection.server_id != self._described_by:
                metadata = self._learned(await connection.describe_async(self.name, self.version), connection.server_id)
            call = self._call_with(lent, connection, given, metadata)
            try:
                return _without_row(call, await connection.call_async(call, self._key(call)))
            except InferenceServerException as error:
                raise _with_cure(call, error) from None
            except Stale:
                self._metadata, self._wanted = None, ()
                if not left:
                    raise self._unsteady() from None
        raise AssertionError("the last try raised")

    def _unsteady(self) -> InferenceServerException:
        return InferenceServerException(f"model '{self.name}' was loaded anew during each of {TRIES_MAX} attempts; try again later")

    def _stream(self, given: Any, used: list[Any], using: threading.Lock) -> Iterator[Response]:
        """As :meth:`stream`. ``used`` has the connection while the stream uses it. It is changed only under the lock ``using``."""

        lent = self._lent()

        def start(connection: Any) -> Iterator[Response]:
            with using:
                used.append(connection)
            try:
                # Another thread may run this.
                call = self._call_with(lent, connection, given, self._described(connection))
                for response in connection.stream(call):
                    yield _without_row(call, response)
            finally:
                with using:
                    used.remove(connection)

        return self._client._stream(start)

    def _fetch_metadata(self, connection: Any) -> tuple[Metadata, str]:
        # No call is using the connection, so its timeout may be changed.
        connection.set_timeout(None)
        return self._described_at(connection)

    def _described_at(self, connection: Any) -> tuple[Metadata, str]:
        return connection.describe(self.name, self.version), connection.server_id

    def _quick(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> Optional[Response]:
        """Runs the call if every input is a numpy array of the model's datatype, in shapes that were used before. None if not."""
        found = self._as_they_are(arrays, named)
        if found is None:
            return None
        key, arrays = found
        try:
            return self._client._quick(key, arrays, lambda connection: self._call(connection, (arrays, {}, None, None, "", None)))
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

    def _all_as_they_are(self, requests: Sequence[Any]) -> Optional[tuple[list[Any], list[Any]]]:
        """As :meth:`_as_they_are`, for many requests."""
        if len(self._wanted) != 1:
            found = [self._as_they_are((), one) if isinstance(one, dict) else self._as_they_are(one, {}) for one in requests]
            return None if None in found else tuple(map(list, zip(*found)))  # type: ignore[arg-type, return-value]
        ((name, dtype),) = self._wanted
        keys, all_arrays = [], []
        last, key = None, None
        for one in requests:
            if type(one) is not tuple and isinstance(one, dict):
                one = (one[name],) if len(one) == 1 and name in one else ()
            if len(one) != 1:
                return None
            array = one[0]
            if type(array) is not _ndarray or array.dtype != dtype:
                return None
            shape = array.shape
            if shape != last:
                last, key = shape, self._keys.get((shape,)) or self._new_key((shape,))
            keys.append(key)
            all_arrays.append(one)
        return keys, all_arrays

    def _infer(self, connection: Any, given: Any, timeout: Optional[float]) -> Response:
        connection.set_timeout(timeout)
        for left in reversed(range(TRIES_MAX)):
            call = self._call(connection, given)
            try:
                return _without_row(call, connection.call(call, self._key(call)))
            except InferenceServerException as error:
                raise _with_cure(call, error) from None
            except Stale:
                # The request was not run. The model may have been reloaded with other tensors.
                self._metadata, self._wanted = None, ()
                if not left:
                    raise self._unsteady() from None
        raise AssertionError("the last try raised")

    def _infer_many(self, connection: Any, requests: Sequence[Any], outputs: Any, timeout: Optional[float]) -> list[Any]:
        connection.set_timeout(timeout)
        if outputs is None and (quick := self._all_as_they_are(requests)) is not None:
            found = connection.quick_many(*quick)
            if found is not None:
                return [
                    self._looked_at(connection, one, _split(requests[index]), timeout) if type(one) is tuple else one
                    for index, one in enumerate(found)
                ]
        split = [_split(one) for one in requests]
        calls: list[Any] = []
        for arrays, named in split:
            try:
                calls.append(self._call(connection, (arrays, named, outputs, None, "", None)))
            except (InferenceServerException, TypeError) as error:
                # The others are run.
                calls.append(error)
        sent = [one for one in calls if isinstance(one, Call)]
        answered = iter(connection.call_many(sent, self._key) if sent else ())
        outcomes = [next(answered) if isinstance(one, Call) else one for one in calls]
        for index, (call, one) in enumerate(zip(calls, outcomes)):
            if isinstance(one, InferenceServerException) and isinstance(call, Call):
                outcomes[index] = _with_cure(call, one)
            elif not isinstance(one, Exception):
                outcomes[index] = _without_row(call, one)
        return [self._unless_stale(connection, one, split[index], outputs, timeout) for index, one in enumerate(outcomes)]

    def _looked_at(self, connection: Any, found: Any, request: Any, timeout: Optional[float]) -> Any:
        """The result of one of many calls, whose answer is not the expected one."""
        slot, answer = found
        call = self._call(connection, (*request, None, None, "", None))
        outcome = connection._caught(connection._settle, slot, call, self._key(call), answer)
        return self._unless_stale(connection, outcome, request, None, timeout)

    def _unless_stale(self, connection: Any, outcome: Any, request: Any, outputs: Any, timeout: Optional[float]) -> Any:
        """The result, or that of another attempt if the request was not run."""
        if not isinstance(outcome, Stale):
            return outcome
        self._metadata, self._wanted = None, ()
        return connection._caught(self._infer, connection, (*request, outputs, None, "", None), timeout)

    def _call_with(self, lent: dict[str, _InputBuffer], connection: Any, given: Any, metadata: Metadata) -> Call:
        """The call with the buffers of the thread that asked."""
        own, self._local.lent = self._lent(), lent
        try:
            return self._call(connection, given, metadata)
        finally:
            self._local.lent = own

    def _call(self, connection: Any, given: Any, metadata: Optional[Metadata] = None) -> Call:
        """The call. Without ``metadata`` it may wait for the server to describe the model."""
        arrays, named, outputs, parameters, id, sequence = given
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
                inputs.append(Input(lent.spec, lent.array, lent.block_at(connection)))
                read.append(lent)
        if len(inputs) - len(read) < len(values):
            unknown = sorted(set(values) - {spec.name for spec in specs})
            raise TypeError(f"model '{self.name}' has no input '{unknown[0]}', it takes {', '.join(spec.name for spec in specs)}")
        wanted = () if outputs is None else (outputs,) if isinstance(outputs, str) else tuple(outputs)
        if not isinstance(id, str):
            raise TypeError(f"the id of a request is a str, got {id!r}")
        if sequence is not None:
            parameters = {**(parameters or {}), **_sequence(sequence)}
        return Call(self.name, self.version, metadata, inputs, wanted, id, parameters, is_row, read)

    def _input(self, spec: Spec, value: Any, connection: Any) -> tuple[int, Input]:
        """The number of dimensions that were given, and the input."""
        # Other threads may learn other inputs meanwhile, so this does not look at what was learned last.
        wanted = None if spec.datatype == "BYTES" else element_dtype(spec.datatype)
        if type(value) is np.ndarray and wanted is not None and value.dtype == wanted:
            array = value
        else:
            array, dtype = _convert.elements(value, spec.datatype, connection.note_copy)
            if wanted is not None:
                array = np.asarray(array).astype(dtype, copy=False)
        dims = array.ndim
        if not self._batch and spec.shape[:1] == (-1,) and dims == len(spec.shape) - 1:
            array = array[None]
        at = Spec(spec.name, spec.datatype, array.shape)
        return dims, Input(at, _datatypes.encoded_elements(array) if spec.datatype == "BYTES" else array, None)

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
        given = dict(lent)

        def call(*arrays: Any, **named: Any) -> Response:
            self._local.lent = given
            try:
                return self(*arrays, **named)
            finally:
                self._local.lent = {}

        return call


class _InputBuffer:
    """The buffer of a thread for an input."""

    def __init__(self, block: Optional[Block], spec: Spec):
        size = _datatypes.fixed_byte_size(spec.shape, spec.datatype) or 0
        #: None if the bytes are copied once more, because memory cannot be shared.
        self.block = block
        self.spec = spec
        memory = (block or heap_block(size)).array()
        self.array = memory[:size].view(element_dtype(spec.datatype)).reshape(spec.shape)
        self._in_flight = 0
        self._lock = threading.Lock()

    def block_at(self, connection: Any) -> Optional[Block]:
        """The memory, if the connection's server can read it where it lies. None if the elements must be copied: a server lends memory only as
        long as the session is open that borrowed it, and knows nothing of the memory that its predecessor lent."""
        keeper = None if self.block is None else self.block.slab.keeper
        if keeper is None or keeper is connection:
            return self.block
        if keeper.server_id != connection.server_id or not keeper.is_alive():
            self.block = None
        return self.block

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


def _check_timeout(timeout: Any) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.number)):
        raise TypeError(f"a timeout is a number of seconds, or None for no limit; got {timeout!r}")
    if not timeout > 0:
        raise ValueError(f"a timeout is more than 0 seconds, or None for no limit; got {timeout!r}")


def _with_cure(call: Call, error: InferenceServerException) -> InferenceServerException:
    """The error, with what helps if inputs seem to lack the batch dimension."""
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


def _split(request: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs of one of many requests: in order, and by name."""
    return ((), request) if isinstance(request, dict) else (request, {})


def _without_row(call: Call, response: Response) -> Response:
    """The response to a call whose inputs got a first dimension of 1, without that dimension."""
    if call.is_row:
        arrays = response._arrays
        for spec in call.metadata.outputs:
            array = arrays.get(spec.name)
            if array is not None and spec.shape[:1] == (-1,) and array.shape[:1] == (1,):
                arrays[spec.name] = array.reshape(array.shape[1:])
    return response


def _sequence(sequence: Any) -> dict[str, Any]:
    number, *marks = sequence if isinstance(sequence, tuple) else (sequence,)
    if unknown := set(marks) - {"start", "end"}:
        raise ValueError(f"a sequence is marked 'start' or 'end', not {unknown.pop()!r}")
    return {"sequence_id": number, "sequence_start": "start" in marks, "sequence_end": "end" in marks}
