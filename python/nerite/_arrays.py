"""How do other libraries use a handle as an array?

By the protocols that they support: ``__array__`` (numpy, JAX, pandas), ``__dlpack__`` (PyTorch, CuPy, JAX), the buffer protocol from Python
3.12 on, and indexing. All of them give access to the memory itself, except for BYTES: its elements have no fixed place, so ``__array__``
returns a decoded copy, and the other protocols refuse.
"""

from __future__ import annotations

from typing import Any, Iterator, Optional

import numpy as np

# DLPack's device type and number of the host's memory.
HOST = (1, 0)
# Since this version numpy supports DLPack's second layout, which tells consumers whether memory may be written to.
_NUMPY_VERSIONED = "2.1.0"


def _is_versioned() -> bool:
    return bool(np.lib.NumpyVersion(np.__version__) >= _NUMPY_VERSIONED)


class BrainArray(np.ndarray):
    """An output of BF16. It is an array that supports DLPack, which numpy's own does not for this datatype."""

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule, with DLPack's arguments. It is over a copy if one is requested, or if the array is not contiguous or is read-only."""
        if not is_brain(self.dtype):
            # The result of a computation with such an array.
            return np.asarray(self).__dlpack__(**options)
        # Imported at first use, because it needs ctypes with callbacks, which some systems forbid.
        from nerite.model import dlpack

        options.pop("stream", None)
        return dlpack.exported(np.asarray(self).view(np.uint16), "BF16", **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device of the memory: the host."""
        return HOST

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickle: an array of numpy, which needs no nerite."""
        return np.asarray(self).__reduce_ex__(protocol)


def is_brain(dtype: np.dtype[Any]) -> bool:
    """Whether it is the dtype of ``ml_dtypes`` for BF16."""
    return dtype.name == "bfloat16"


def output(array: np.ndarray) -> np.ndarray:
    """The array of an output, with DLPack for BF16."""
    return array.view(BrainArray) if is_brain(array.dtype) else array


class ArrayProtocols:
    """The part of a handle that makes it an array for other libraries. The memory lives as long as their arrays."""

    def _elements(self) -> np.ndarray:
        """The elements as a numpy array."""
        raise NotImplementedError

    def _is_copied(self) -> bool:
        """Whether :meth:`_elements` is a copy, because the elements have no fixed place."""
        return False

    def _in_place(self, protocol: str) -> tuple[str, np.ndarray]:
        """The datatype and the elements in place, BF16 as ``uint16``. Raises BufferError if the elements have no fixed place."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        """For numpy: a view on the memory if ``dtype`` is that of the elements and no copy is wanted."""
        elements = self._elements()
        if dtype is not None and np.dtype(dtype) != elements.dtype:
            if copy is False:
                raise ValueError(
                    f"{self!r} has elements of {elements.dtype}, as {np.dtype(dtype)} they are a copy; drop copy=False"
                )
            return elements.astype(dtype)
        if self._is_copied():
            if copy is False:
                raise ValueError(f"the elements of {self!r} have no fixed place, an array of them is a copy; drop copy=False")
            return elements
        return elements.copy() if copy else elements

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device of the memory: the host."""
        return HOST

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """A DLPack capsule over the memory, or over a copy if one is requested. ``stream`` has no meaning for the host."""
        if dl_device is not None and tuple(dl_device) != HOST:
            raise BufferError(
                f"{self!r} is in the host's memory {HOST}, asked for device {tuple(dl_device)}; move it after from_dlpack"
            )
        datatype, elements = self._in_place("DLPack")
        if copy:
            elements = elements.copy()
        # numpy has no BF16.
        if max_version is not None and datatype != "BF16" and _is_versioned():
            return elements.__dlpack__(max_version=max_version)  # type: ignore[call-arg]
        # Imported at first use, because it needs ctypes with callbacks, which some systems forbid.
        from nerite.model import dlpack

        return dlpack.exported(elements, datatype)

    def __buffer__(self, flags: int) -> memoryview:
        """The buffer protocol, from Python 3.12 on."""
        datatype, elements = self._in_place("the buffer protocol")
        if datatype == "BF16":
            raise BufferError(f"the buffer protocol has no BF16, the datatype of {self!r}; take as_memory() or DLPack")
        return memoryview(elements)

    def __getitem__(self, key: Any) -> Any:
        """Elements by numpy's indexing rules: a view if numpy returns a view. For BYTES, a decoded copy."""
        return self._elements()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Writes elements in place, by numpy's indices and by its rules of conversion."""
        self._in_place("assignment to elements")
        self._elements()[key] = value

    def __len__(self) -> int:
        """The first dimension."""
        return len(self._elements())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements())

    def __bool__(self) -> bool:
        """A handle is true, whatever its length."""
        return True
