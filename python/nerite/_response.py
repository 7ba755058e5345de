"""How are the outputs of an inference accessed?"""

from __future__ import annotations

import functools
from typing import Any, ItemsView, Iterator, KeysView, Mapping, NamedTuple, Optional, ValuesView

import numpy as np

# The most classes of responses that are kept.
CLASSES_MAX = 256


class Head(NamedTuple):
    """The parts of a response besides its tensors."""

    model: str = ""
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Any] = {}


class Response:
    """The outputs of one inference, by name.

    ``response["y"]`` and ``response.y`` are the output ``y``. ``response.items()`` has all outputs. ``y, z = response`` unpacks them in the
    model's order, and ``y, = response`` unpacks the only one. The response itself has ``model``, ``version``, ``id``, ``parameters``, ``keys``, ``values``,
    ``items`` and ``get``. An output with one of these names, or with a name that begins with an underscore, is available only by index, such as
    ``response["keys"]``. With a session, arrays lie in shared memory. They are valid as long as they are referenced, are writable, and support DLPack, also
    those of BF16 (with ``ml_dtypes``).
    """

    __slots__ = ("_arrays", "_head", "_answer")

    def __init__(self, arrays: dict[str, np.ndarray], head: Head = Head()):
        self._arrays = arrays
        self._head = head

    @property
    def model(self) -> str:
        """The model that answered."""
        return self._head.model

    @property
    def version(self) -> str:
        """Its version."""
        return self._head.version

    @property
    def id(self) -> str:
        """The request's id."""
        return self._head.id

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters that the model added."""
        return dict(self._head.parameters)

    def __reduce__(self) -> Any:
        """For pickle and copy: without the class that :func:`response_class` made."""
        return Response, (self._arrays, self._head)

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._arrays[name]
        except KeyError:
            raise KeyError(self._missing(name)) from None

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._arrays[name]
        except KeyError:
            raise AttributeError(self._missing(name)) from None

    def _missing(self, name: str) -> str:
        has = ', '.join(self._arrays) if self._arrays else "no outputs: does the model return them by the names of its configuration?"
        return f"no output '{name}', the response has {has}"

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self._arrays.values())

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        """The only output, for numpy."""
        if len(self._arrays) != 1:
            raise ValueError(f"the response has {len(self._arrays)} outputs, {', '.join(self._arrays)}; name one")
        (array,) = self._arrays.values()
        return np.array(array, dtype=dtype) if copy or (dtype is not None and dtype != array.dtype) else array

    def keys(self) -> KeysView[str]:
        """The names of the outputs."""
        return self._arrays.keys()

    def values(self) -> ValuesView[np.ndarray]:
        """The outputs, in the model's order."""
        return self._arrays.values()

    def items(self) -> ItemsView[str, np.ndarray]:
        """Names and outputs."""
        return self._arrays.items()

    def get(self, name: str, default: Any = None) -> Any:
        """The output of that name, or ``default``."""
        return self._arrays.get(name, default)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self._arrays.items())
        return f"<Response of '{self.model}' version {self.version}: {shown}>"


@functools.lru_cache(maxsize=CLASSES_MAX)
def response_class(names: tuple[str, ...]) -> type[Response]:
    """A class of responses that all have outputs of these names, which are its properties. An output that only ``__getattr__`` knows costs half a
    microsecond more, because Python first makes and drops an AttributeError."""
    own = {name: _output(name) for name in names if not name.startswith("_") and not hasattr(Response, name)}
    return type("Response", (Response,), {"__slots__": (), "__module__": __name__, "__doc__": Response.__doc__, **own})


def _output(name: str) -> property:
    return property(lambda response: response._arrays[name])
