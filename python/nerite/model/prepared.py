"""Which objects do equal requests share, so that they are made only once?

Clients that reuse their places in shared memory send requests that differ only in their number. For a small tensor, making the array over the
memory and the entries of the packet takes longer than the model does. So they are kept by the bytes of the request.

Each request still gets array objects of its own, so a model may reshape or keep them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Set, Tuple

import numpy as np

from .packets import PLACE_SEGMENT, TENSOR_SEGMENT, PlaceFor, Request, TensorAt
from .tensors import NUMPY_DTYPES, Tensor

if TYPE_CHECKING:
    from .memory import Memory

# The most requests that are kept, and the most bytes of each. Clients choose both numbers.
PREPARED_MAX = 512
PREPARED_BYTES_MAX = 1024


class Prepared:
    """What equal requests share. The arrays over memory are made when the first of them runs."""

    __slots__ = ("inputs", "input_segments", "output_segments", "wanted", "_own", "_written", "_memory", "_is_refused", "_changing")

    def __init__(self, request: Request) -> None:
        # Name, datatype and array of each input. The model gets views of the arrays. None if they are not made.
        self.inputs: Optional[List[Tuple[str, str, np.ndarray]]] = None
        self.input_segments = [tensor[TENSOR_SEGMENT] for tensor in request["inputs"]]
        self.output_segments = [place[PLACE_SEGMENT] for place in request["outputs"]]
        # The places of the outputs by name, if all are the client's own. Other places may be replaced in a request.
        self.wanted: Optional[Dict[str, PlaceFor]] = None
        if all(place[4] and place[PLACE_SEGMENT] is not None for place in request["outputs"]):
            self.wanted = {place[0]: place for place in request["outputs"]}
        # By name, the segment and offset of each place that is the client's own. A decoupled request's later responses may have other places.
        self._own = {place[0]: (place[PLACE_SEGMENT], place[2]) for place in request["outputs"] if place[4]}
        # The array over the place of each output in which one was written, and its description for the server.
        self._written: Dict[str, Tuple[np.ndarray, TensorAt]] = {}
        self._memory: Optional[Memory] = None
        self._is_refused = Tensor.private_inputs or any(tensor[1] == "BYTES" for tensor in request["inputs"])
        self._is_refused |= any(segment is None for segment in self.input_segments)
        # Held while arrays are kept or dropped, and while their uses are noted. Several threads may answer equal requests at once. The lock is reentrant,
        # because a finalizer of the model may run meanwhile, and send a response.
        self._changing = threading.RLock()

    def make(self, request: Request, memory: Memory) -> None:
        """Makes the arrays over the inputs, if that is possible."""
        if self._is_refused or any(memory.is_private(segment) or segment in memory.unmapped for segment in self.input_segments):
            return
        held = [memory[segment] for segment in self.input_segments]
        if any(type(one) is not np.ndarray for one in held):
            # A region on a GPU.
            self._is_refused = True
            return
        made = []
        for (name, datatype, shape, _, offset, _), one in zip(request["inputs"], held):
            array = np.ndarray(shape, NUMPY_DTYPES[datatype], one, offset)
            array.flags.writeable = False
            made.append((name, datatype, array))
        with self._changing:
            self._memory = memory
            for segment in self.input_segments:
                memory.expect_use(segment, 1)
            self.inputs = made

    def written(self, tensor: Tensor, array: np.ndarray, place: PlaceFor) -> Optional[Tuple[np.ndarray, TensorAt]]:
        """The array over the output's place and its description, if such an output was written there before."""
        found = self._written.get(tensor._name)
        if found is None:
            return None
        _, datatype, shape, segment, offset, _ = found[1]
        if shape != array.shape or datatype != tensor.datatype or segment != place[PLACE_SEGMENT] or offset != place[2]:
            return None
        return found

    def note(self, view: np.ndarray, tensor_at: TensorAt) -> None:
        """Keeps what was written at the client's own place, if the request names that place."""
        if self._own.get(tensor_at[0]) != (tensor_at[TENSOR_SEGMENT], tensor_at[4]):
            return
        with self._changing:
            memory = self._memory
            if memory is None:
                return
            is_new = tensor_at[0] not in self._written
            self._written[tensor_at[0]] = (view, tensor_at)
            if is_new:
                memory.expect_use(tensor_at[TENSOR_SEGMENT], 1)

    def drop(self) -> None:
        """Drops the arrays, because the server removes their memory."""
        with self._changing:
            memory, self._memory, self._is_refused = self._memory, None, True
            if memory is None:
                return
            for segment in self.input_segments:
                memory.expect_use(segment, -1)
            for _, tensor_at in self._written.values():
                memory.expect_use(tensor_at[TENSOR_SEGMENT], -1)
            self.inputs = None
            self._written = {}


# By the bytes of the request after its number.
_known: Dict[bytes, Request] = {}
# The hashes of requests that arrived once. A request that arrives only once is not kept.
_seen: Set[int] = set()

find = _known.get


def note(key: bytes, request: Request) -> None:
    """Keeps a request when it arrives for the second time."""
    mark = hash(key)
    if mark not in _seen:
        if len(_seen) >= PREPARED_MAX:
            _seen.clear()
        _seen.add(mark)
        return
    if len(_known) >= PREPARED_MAX:
        forget_all()
    kept = request.copy()
    kept["outputs"] = [place[:] for place in request["outputs"]]
    kept["prepared"] = Prepared(kept)
    _known[key] = kept


def again(kept: Request, number: int) -> Request:
    """The kept request, with this number."""
    request = kept.copy()
    request["number"] = number
    if kept["prepared"].wanted is None:
        request["outputs"] = [place[:] for place in kept["outputs"]]
    return request


def forget(segments: Iterable[int]) -> None:
    """Drops the requests whose tensors lie in these segments."""
    gone = set(segments)
    for key, kept in list(_known.items()):
        prepared: Any = kept["prepared"]
        if not gone.isdisjoint(prepared.input_segments) or not gone.isdisjoint(prepared.output_segments):
            prepared.drop()
            del _known[key]


def forget_all() -> None:
    """Drops all requests."""
    for kept in _known.values():
        kept["prepared"].drop()
    _known.clear()
