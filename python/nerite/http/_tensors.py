"""How do inputs, outputs and results over HTTP use managed buffers?"""

from __future__ import annotations

from typing import Any, Container, Optional, Sequence

import tritonclient.http as origin

from nerite._buffers import ManagedInput, ManagedOutput
from nerite._managed import PlacedResult
from nerite._pool import Block

SHARED_MEMORY_PARAMETERS = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")


class InferInput(ManagedInput, origin.InferInput):
    """``tritonclient.http.InferInput``, whose data can also be a managed buffer."""

    def set_data_from_numpy(self, input_tensor: Any, binary_data: bool = True) -> Any:
        """As tritonclient's."""
        super().set_data_from_numpy(input_tensor, binary_data)
        self._handle = None
        return self

    def set_shared_memory(self, region_name: str, byte_size: int, offset: int = 0) -> Any:
        """As tritonclient's."""
        super().set_shared_memory(region_name, byte_size, offset)
        self._handle = None
        return self

    def _forget_data(self) -> None:
        self._data = None
        self._raw_data = None
        for name in ("binary_data_size", *SHARED_MEMORY_PARAMETERS):
            self._parameters.pop(name, None)

    def _get_tensor(self) -> Any:
        block = self._managed_block()
        if block is not None and self._handle is not None:
            self._forget_data()
            if block.slab.name:
                origin.InferInput.set_shared_memory(self, block.slab.name, self._handle.byte_size, block.offset)
            else:
                self._parameters["binary_data_size"] = self._handle.byte_size
        tensor = super()._get_tensor()
        if block is not None and not block.slab.name:
            tensor.pop("data", None)
        return tensor

    def _get_binary_data(self) -> Any:
        block = self._managed_block()
        if block is None or self._handle is None or block.slab.name:
            return super()._get_binary_data()
        # A copy, because the caller may change the buffer during the request.
        return block.array()[: self._handle.byte_size].tobytes()


class InferOutput(ManagedOutput, origin.InferRequestedOutput):
    """A requested output that the server writes to a managed buffer. Each request gets its own buffer.

    Parameters
    ----------
    name : str
        The output's name.
    shape : sequence of int
        Its dimensions, or their largest values.
    datatype : str
        Its datatype in the protocol.
    byte_size : int
        The size of the buffer, if shape and datatype do not determine it: for BYTES, 4 per element and the content.

    If the size is not known beforehand, the server chooses a lease of the right size, if it lends memory to this client. If memory cannot
    be shared, the output comes inside the response.
    """

    def __init__(
        self,
        name: str,
        shape: Optional[Sequence[int]] = None,
        datatype: Optional[str] = None,
        byte_size: Optional[int] = None,
    ):
        origin.InferRequestedOutput.__init__(self, name, binary_data=True)
        self._describe(shape, datatype, byte_size)

    def _parameter_names(self) -> Container[str]:
        return self._parameters or ()

    def _placed_in(self, block: Block) -> origin.InferRequestedOutput:
        placed = origin.InferRequestedOutput(self.name(), binary_data=True)
        placed.set_shared_memory(block.slab.name, self.byte_size(), block.offset)
        return placed

    def _placed_by_server(self, key: str) -> origin.InferRequestedOutput:
        placed = origin.InferRequestedOutput(self.name(), binary_data=True)
        # The size 0 means that the server chooses the place.
        placed.set_shared_memory(key, 0)
        return placed


class InferResult(PlacedResult, origin.InferResult):
    """``tritonclient.http.InferResult`` whose outputs may lie in managed buffers."""

    def _described(self, name: str) -> Optional[tuple[tuple[int, ...], str]]:
        for output in self._result.get("outputs") or []:
            if output["name"] == name:
                return tuple(output["shape"]), output["datatype"]
        return None

    def _named_places(self) -> list[tuple[str, str, int, int]]:
        found = []
        for output in self._result.get("outputs") or []:
            said = output.get("parameters") or {}
            if "shared_memory_region" in said:
                place = (said["shared_memory_region"], said["shared_memory_offset"], said["shared_memory_byte_size"])
                found.append((output["name"], *place))
        return found
