"""How does a program hold a tensor's buffer, and use it as an input or output?"""

from __future__ import annotations

from typing import Any, Container, Optional, Protocol, Sequence, TypeVar

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _convert, _datatypes
from nerite._arrays import ArrayProtocols
from nerite._pool import Block, Slab

ALIGNMENT_BYTES = 64

Input = TypeVar("Input", bound="ManagedInput")


class BufferSource(Protocol):
    """The source of buffers. Each client has one."""

    def lend(self, byte_size: int) -> Block:
        """A block of at least ``byte_size`` bytes, in shared memory if possible."""


def heap_block(byte_size: int) -> Block:
    """A block in private memory, whose slab has no name. It is for tensors that are sent inline."""
    raw = np.empty(byte_size + ALIGNMENT_BYTES, dtype=np.uint8)
    slab = Slab("", raw)
    return Block(slab, -slab.address % ALIGNMENT_BYTES, byte_size)


def is_shared(block: Block) -> bool:
    """Whether the server can access the block by name."""
    return bool(block.slab.name)


def view(block: Block, shape: Sequence[int], datatype: str) -> np.ndarray:
    """The tensor at the block's beginning: a view that keeps the block alive, or a decoded copy for BYTES."""
    byte_size = _datatypes.fixed_byte_size(shape, datatype)
    if byte_size is None:
        return _datatypes.decode_elements(block.array().data, shape)
    if byte_size > block.byte_size:
        raise InferenceServerException(
            f"a tensor {list(shape)} of {datatype} takes {byte_size} bytes, its buffer has {block.byte_size}"
        )
    return block.array()[:byte_size].view(_datatypes.numpy_dtype(datatype)).reshape(tuple(shape))


def check_handle(handle: Any) -> TensorBuffer:
    """The handle itself. Raises an error for any other object."""
    if not isinstance(handle, TensorBuffer):
        raise InferenceServerException(
            f"expected a handle of register_input_tensor_with_shared_memory, got {type(handle).__name__}"
        )
    return handle


class TensorBuffer(ArrayProtocols):
    """A tensor in a managed buffer, as ``register_input_tensor_with_shared_memory`` returns it.

    It has a shape, a datatype and a size, and other libraries can use it as an array: ``numpy.asarray(handle)``,
    ``torch.from_dlpack(handle)`` and ``handle[0]`` are views on the buffer. The buffer returns to its pool when the handle is released (by
    ``release``, the end of its ``with`` block or the garbage collector) and no array over it, no input with it and no request in flight is
    left.
    """

    def __init__(self, lender: BufferSource, shape: Sequence[int], datatype: str, byte_size: Optional[int] = None):
        self._lender = lender
        self._datatype = _datatypes.check_datatype(datatype)
        self._shape = _datatypes.check_shape(shape)
        if any(dim < 0 for dim in self._shape):
            raise InferenceServerException(f"the shape of a buffer must not have unknown dimensions, got {list(self._shape)}")
        fixed = _datatypes.fixed_byte_size(self._shape, datatype)
        byte_size = _datatypes.check_byte_size(byte_size, self._shape, datatype)
        # A BYTES tensor has no size before it is written. A buffer of zeros is a tensor of empty elements.
        empty = _datatypes.empty_byte_size(self._shape)
        self._byte_size = empty if fixed is None else fixed
        self._block: Optional[Block] = self._lend(max(byte_size or 0, self._byte_size))
        if fixed is None:
            self._block.array()[:empty] = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's dimensions."""
        return self._shape

    @property
    def datatype(self) -> str:
        """The tensor's datatype in the protocol, for example ``"FP32"``."""
        return self._datatype

    @property
    def byte_size(self) -> int:
        """The size of the tensor in bytes. For BYTES, the size of the last content."""
        return self._byte_size

    @property
    def capacity(self) -> int:
        """The size of the buffer in bytes."""
        return self._held().byte_size

    @property
    def is_shared(self) -> bool:
        """Whether the server reads the buffer in place. Otherwise its bytes are sent in the request."""
        return is_shared(self._held())

    @property
    def released(self) -> bool:
        """Whether :meth:`release` has been called."""
        return self._block is None

    def as_numpy(self) -> np.ndarray:
        """The buffer itself as an array of the handle's shape. The model reads what is written to it.

        For BYTES, whose elements have no fixed place, it is a copy: the decoded elements as an object array.
        """
        return view(self._held(), self._shape, self._datatype)

    def as_memory(self) -> np.ndarray:
        """The whole buffer as uint8, shape [capacity]. A program can serialise BYTES here itself, and set the size with :meth:`set_byte_size`."""
        return self._held().array()

    def set_byte_size(self, byte_size: int) -> None:
        """Sets the size of a BYTES tensor that was written through :meth:`as_memory`."""
        if self._datatype != "BYTES":
            raise InferenceServerException(f"the size of a {self._datatype} tensor follows from its shape")
        if not 0 <= byte_size <= self.capacity:
            raise InferenceServerException(f"the buffer has {self.capacity} bytes, not {byte_size}")
        self._byte_size = byte_size

    def copy_from(self, data: Any) -> None:
        """Copies a tensor of the handle's shape into the buffer.

        ``bytes``, ``bytearray`` and ``memoryview`` are the serialised bytes of such a tensor. Any other value is its elements: a numpy
        array, an object with DLPack, ``__array__`` or the buffer protocol, or nested lists of numbers or strings. Arrays of another
        datatype are converted if no value can be lost.
        """
        self._held()
        if isinstance(data, (bytes, bytearray, memoryview)):
            whole = memoryview(data)
            self._copy_bytes((whole if whole.c_contiguous else memoryview(whole.tobytes())).cast("B"))
        else:
            self._copy_elements(data)

    def release(self) -> None:
        """Releases the buffer. The handle cannot be used afterwards. Arrays over it stay valid."""
        self._block = None

    def __enter__(self) -> TensorBuffer:
        self._held()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __repr__(self) -> str:
        where = "released" if self._block is None else "shared" if self.is_shared else "inline"
        return f"TensorBuffer({list(self._shape)}, '{self._datatype}', {self._byte_size} bytes, {where})"

    def _held(self) -> Block:
        if self._block is None:
            raise InferenceServerException("the buffer was released")
        return self._block

    def _lend(self, byte_size: int) -> Block:
        # An empty tensor has no bytes to share, and older servers refuse windows of size 0.
        return self._lender.lend(byte_size) if byte_size else heap_block(0)

    def _elements(self) -> np.ndarray:
        return self.as_numpy()

    def _is_copied(self) -> bool:
        return self._datatype == "BYTES"

    def _in_place(self, protocol: str) -> tuple[str, np.ndarray]:
        block = self._held()
        if self._datatype == "BYTES":
            raise BufferError(
                f"elements of BYTES have no fixed place, so {protocol} has none for {self!r}; read as_numpy() or as_memory(), "
                f"write with copy_to_shared_memory"
            )
        return self._datatype, view(block, self._shape, "UINT16" if self._datatype == "BF16" else self._datatype)

    def _copy_elements(self, data: Any) -> None:
        array, dtype = _convert.elements(data, self._datatype)
        if array.shape != self._shape:
            kind = "numpy array" if isinstance(data, np.ndarray) else type(data).__name__
            raise InferenceServerException(f"got unexpected {kind} shape {list(array.shape)}, expected {list(self._shape)}")
        if self._datatype != "BYTES":
            self._held().array()[: self._byte_size].view(dtype).reshape(self._shape)[...] = array
            return
        elements = _datatypes.encoded_elements(array)
        self._reserve(_datatypes.encoded_byte_size(elements))
        self._byte_size = _datatypes.write_elements(elements, self._held().array().data)

    def _copy_bytes(self, data: memoryview) -> None:
        if self._datatype == "BYTES":
            _, used = _datatypes.walk_elements(data, _datatypes.element_count(self._shape))
            if used != len(data):
                raise InferenceServerException(
                    f"a tensor {list(self._shape)} of BYTES ends after {used} bytes, got {len(data)}"
                )
            self._reserve(used)
            self._byte_size = used
        elif len(data) != self._byte_size:
            raise InferenceServerException(
                f"a tensor {list(self._shape)} of {self._datatype} takes {self._byte_size} bytes, got {len(data)}"
            )
        self._held().array().data[: len(data)] = data

    def _reserve(self, byte_size: int) -> None:
        """Takes a larger buffer if this one is too small. Requests in flight keep the old one."""
        if byte_size > self._held().byte_size:
            self._block = self._lend(byte_size)


class ManagedInput:
    """The part of an ``InferInput`` for managed buffers, which both protocols share."""

    _handle: Optional[TensorBuffer] = None

    def set_shared_memory_request(self: Input, handle: TensorBuffer) -> Input:
        """Makes the handle's buffer the data of the input, with its content when the request is sent. Returns the input.

        The handle must have the input's shape and datatype.
        """
        check_handle(handle)
        name, shape, datatype = self.name(), tuple(self.shape()), self.datatype()  # type: ignore[attr-defined]
        if (shape, datatype) != (handle.shape, handle.datatype):
            raise InferenceServerException(
                f"input '{name}' is {list(shape)} of {datatype}, the handle {list(handle.shape)} of {handle.datatype}"
            )
        handle._held()
        self._forget_data()
        self._handle = handle
        return self

    def _forget_data(self) -> None:
        """Drops data that other calls have set."""
        raise NotImplementedError

    def _managed_block(self) -> Optional[Block]:
        """The block to keep while a request is in flight."""
        if self._handle is None:
            return None
        block = self._handle._held()
        if block.slab.dropped:
            raise InferenceServerException("the client that made the buffer was closed")
        return block


class ManagedOutput:
    """The part of an ``InferOutput`` that both protocols share."""

    def _describe(self, shape: Optional[Sequence[int]], datatype: Optional[str], byte_size: Optional[int]) -> None:
        self._shape = None if shape is None else _datatypes.check_shape(shape)
        self._datatype = None if datatype is None else _datatypes.check_datatype(datatype)
        self._byte_size = _datatypes.check_byte_size(byte_size, self._shape, self._datatype)

    def shape(self) -> Optional[tuple[int, ...]]:
        """The expected dimensions."""
        return self._shape

    def datatype(self) -> Optional[str]:
        """The expected datatype."""
        return self._datatype

    def byte_size(self) -> Optional[int]:
        """The size of the output's buffer in bytes. None if it is not known yet (BYTES without ``byte_size``)."""
        return self._byte_size

    def _parameter_names(self) -> Container[str]:
        """The output's parameters. An output with some of them needs no place."""
        raise NotImplementedError

    def has_region(self) -> bool:
        """Whether the program chose a region for it with ``set_shared_memory``."""
        return "shared_memory_region" in self._parameter_names()

    def _placed_in(self, block: Block) -> Any:
        """A ``tritonclient`` output for one request, which the server writes to ``block``."""
        raise NotImplementedError

    def _placed_for(self, placing: Any) -> Any:
        """A ``tritonclient`` output for one request, which the server writes to a lease that it chooses."""
        placing.requested.add(self.name())  # type: ignore[attr-defined]
        return self._placed_by_server(placing.key)

    def _placed_by_server(self, key: str) -> Any:
        """A ``tritonclient`` output, which the server writes to a lease of the session with that key."""
        raise NotImplementedError


def wants_place(output: Any) -> bool:
    """Whether a request must choose a place for the output: it is an output of this package, and the program chose no region for it."""
    return isinstance(output, ManagedOutput) and not output.has_region()
