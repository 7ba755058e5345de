"""How do inputs, outputs and results over gRPC use managed buffers?"""

from __future__ import annotations

from typing import Any, Container, Optional, Sequence

import tritonclient.grpc as origin

from nerite._buffers import ManagedInput, ManagedOutput
from nerite._managed import PlacedResult
from nerite._pool import Block

SHARED_MEMORY_PARAMETERS = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")


class InferInput(ManagedInput, origin.InferInput):
    """``tritonclient.grpc.InferInput``, whose data can also be a managed buffer."""

    def set_data_from_numpy(self, input_tensor: Any) -> Any:
        """As tritonclient's."""
        super().set_data_from_numpy(input_tensor)
        self._handle = None
        return self

    def set_shared_memory(self, region_name: str, byte_size: int, offset: int = 0) -> Any:
        """As tritonclient's."""
        super().set_shared_memory(region_name, byte_size, offset)
        self._handle = None
        return self

    def _forget_data(self) -> None:
        self._raw_content = None
        self._input.ClearField("contents")
        for name in SHARED_MEMORY_PARAMETERS:
            self._input.parameters.pop(name, None)

    def _get_tensor(self) -> Any:
        block = self._managed_block()
        if block is not None and self._handle is not None:
            self._forget_data()
            if block.slab.name:
                origin.InferInput.set_shared_memory(self, block.slab.name, self._handle.byte_size, block.offset)
        return super()._get_tensor()

    def _get_content(self) -> Any:
        block = self._managed_block()
        if block is None or self._handle is None or block.slab.name:
            return super()._get_content()
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
        origin.InferRequestedOutput.__init__(self, name)
        self._describe(shape, datatype, byte_size)

    def _parameter_names(self) -> Container[str]:
        return self._output.parameters

    def _placed_in(self, block: Block) -> origin.InferRequestedOutput:
        placed = origin.InferRequestedOutput(self.name())
        placed.set_shared_memory(block.slab.name, self.byte_size(), block.offset)
        return placed

    def _placed_by_server(self, key: str) -> origin.InferRequestedOutput:
        placed = origin.InferRequestedOutput(self.name())
        # The size 0 means that the server chooses the place.
        placed.set_shared_memory(key, 0)
        return placed


class InferResult(PlacedResult, origin.InferResult):
    """``tritonclient.grpc.InferResult`` whose outputs may lie in managed buffers."""

    def _described(self, name: str) -> Optional[tuple[tuple[int, ...], str]]:
        for output in self._result.outputs:
            if output.name == name:
                return tuple(output.shape), output.datatype
        return None

    def _named_places(self) -> list[tuple[str, str, int, int]]:
        found = []
        for output in self._result.outputs:
            said = output.parameters
            if "shared_memory_region" in said:
                offset, byte_size = (said[f"shared_memory_{key}"].int64_param for key in ("offset", "byte_size"))
                found.append((output.name, said["shared_memory_region"].string_param, offset, byte_size))
        return found
