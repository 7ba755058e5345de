"""How does a test set up, use and clean up shared memory with any Triton-compatible server?

    from nerite.testing import shm_util

    handles, ins, outs = shm_util.create_set_shm_regions(
        [x0, x1], [("OUTPUT0", 64), ("OUTPUT1", 64)], ["in0", "in1", "out0", "out1"], None, client, "http")
    try:
        for tensor, region in zip([input0, input1, output0, output1], ins + outs):
            tensor.set_shared_memory(*region)
        client.infer("simple", [input0, input1], outputs=[output0, output1])
        result = handles[2].as_numpy([1, 16], "INT32")
    finally:
        shm_util.unregister_cleanup_shm_regions(handles, client, "http")

There are two ways to assign names:

* one name per tensor, inputs first: each tensor has its own region;
* two names: all inputs are contiguous in the first region, all outputs in the second.

If a step fails, all completed steps are undone: in /dev/shm or on the device, and in the server. A name that another program has registered
before is not touched.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np

from nerite import _datatypes, shm

PROTOCOLS = ("http", "grpc")
DEVICE_ID = 0


class ShmRegion(NamedTuple):
    """The region of one tensor, in the order of ``set_shared_memory(*region)``."""

    name: str
    byte_size: int
    offset: int


class SystemHandle:
    """A system region and its registered name.

    It also serves as a handle for ``tritonclient.utils.shared_memory``'s ``set_shared_memory_region`` and
    ``get_contents_as_numpy``.
    """

    def __init__(self, name: str, byte_size: int):
        self.name = name
        self.region = shm.Region.create(shm.fresh_key("nerite-test"), byte_size)

    @property
    def key(self) -> str:
        """The POSIX key."""
        return self.region.key

    @property
    def byte_size(self) -> int:
        """The region's size in bytes."""
        return self.region.byte_size

    def as_numpy(self, shape: Sequence[int], datatype: str, offset: int = 0) -> np.ndarray:
        """The tensor at ``offset`` bytes in the region: a view for datatypes of fixed size, a copy for BYTES."""
        return self.region.as_numpy(shape, datatype, offset)

    @property
    def _mpsm_handle(self) -> shm.Region:
        return self.region


class _Kind(NamedTuple):
    """The functions that differ between system and CUDA memory."""

    create: Callable[[str, int], Any]
    write: Callable[[Any, np.ndarray, int], None]
    register: Callable[[Any, Any, str, int], None]
    is_registered: Callable[[Any, Any, str, int], bool]


class _Plan(NamedTuple):
    """One region to make, the tensors to write to it, and the places of its tensors."""

    name: str
    byte_size: int
    inputs: list[tuple[np.ndarray, int]]
    places: list[ShmRegion]


def create_set_shm_regions(
    input_list: Sequence[np.ndarray],
    output_list: Sequence[tuple[str, int]],
    shm_region_names: Sequence[str],
    shm_region_byte_sizes: Optional[Sequence[Optional[int]]],
    triton_client: Any,
    protocol: str,
) -> tuple[list[Any], list[ShmRegion], list[ShmRegion]]:
    """Makes system shared memory regions, writes the inputs, and registers all regions.

    Parameters
    ----------
    input_list : sequence of numpy.ndarray
        The inputs, of any shape. Object arrays are BYTES and are serialised.
    output_list : sequence of (str, int)
        The name and the size in bytes of each output.
    shm_region_names : sequence of str
        One name per tensor, inputs first, or two names: one region for all inputs, one for all outputs.
    shm_region_byte_sizes : sequence of int, or None
        The size of each region in bytes. None, for one or for all, means the size of the tensors.
    triton_client : tritonclient.http.InferenceServerClient or tritonclient.grpc.InferenceServerClient
        The client that registers the regions. nerite's clients are subclasses of these.
    protocol : str
        ``"http"`` or ``"grpc"``.

    Returns
    -------
    (shm_handles, input_shm_regions, output_shm_regions)
        A handle per region, and a (name, byte_size, offset) per input and per output.
    """
    plans = _plans(input_list, output_list, shm_region_names, shm_region_byte_sizes, protocol)
    return _carry_out(plans, len(input_list), triton_client, protocol, _SYSTEM)


def create_set_cuda_shm_regions(
    input_list: Sequence[np.ndarray],
    output_list: Sequence[tuple[str, int]],
    shm_region_names: Sequence[str],
    shm_region_byte_sizes: Optional[Sequence[Optional[int]]],
    triton_client: Any,
    protocol: str,
) -> tuple[list[Any], list[ShmRegion], list[ShmRegion]]:
    """As :func:`create_set_shm_regions`, on CUDA device 0. One region per tensor.

    The handles are those of ``tritonclient.utils.cuda_shared_memory``, which needs ``cuda-python``.
    """
    if len(shm_region_names) != len(input_list) + len(output_list):
        raise ValueError("a CUDA region holds one tensor: give one name per tensor")
    plans = _plans(input_list, output_list, shm_region_names, shm_region_byte_sizes, protocol)
    return _carry_out(plans, len(input_list), triton_client, protocol, _cuda_kind())


def unregister_cleanup_shm_regions(shm_handles: Sequence[Any], triton_client: Any, protocol: str) -> None:
    """Unregisters the region of each handle and releases its memory. After an error, the other handles are still released."""
    _check_protocol(protocol)
    failures = [_failure(partial(_unregister, handle, triton_client)) for handle in shm_handles]
    failures.append(_failure(partial(cleanup_shm_regions, shm_handles)))
    _raise_first(failures)


def cleanup_shm_regions(shm_handles: Sequence[Any]) -> None:
    """Releases the memory of regions that are not registered (any more). Arrays over system regions stay valid."""
    _raise_first([_failure(partial(_destroy, handle)) for handle in shm_handles])


def _plans(
    inputs: Sequence[np.ndarray],
    outputs: Sequence[tuple[str, int]],
    names: Sequence[str],
    sizes: Optional[Sequence[Optional[int]]],
    protocol: str,
) -> list[_Plan]:
    """Checks all arguments before any region is made."""
    _check_protocol(protocol)
    tensors: list[tuple[Optional[np.ndarray], int]] = [(one, _byte_size(one)) for one in inputs]
    tensors += [(None, _output_byte_size(one)) for one in outputs]
    if isinstance(names, str):
        raise ValueError(f"region names are a list of strings, got the string '{names}'")
    if len(names) == len(tensors):
        groups = [[one] for one in tensors]
    elif len(names) == 2 and inputs and outputs:
        groups = [tensors[: len(inputs)], tensors[len(inputs) :]]
    else:
        raise ValueError(f"{len(tensors)} tensors need {len(tensors)} region names, or 2; got {len(names)}")
    if len(set(names)) != len(names):
        raise ValueError(f"a region name occurs twice in {list(names)}")
    if sizes is not None and len(sizes) != len(names):
        raise ValueError(f"{len(names)} regions need {len(names)} byte sizes, got {len(sizes)}")
    return [_plan(name, size, group) for name, size, group in zip(names, sizes or [None] * len(names), groups)]


def _plan(name: str, requested: Optional[int], tensors: list[tuple[Optional[np.ndarray], int]]) -> _Plan:
    inputs, places, end = [], [], 0
    for array, byte_size in tensors:
        places.append(ShmRegion(name, byte_size, end))
        if array is not None:
            inputs.append((array, end))
        end += byte_size
    if requested is not None and requested < end:
        raise ValueError(f"region '{name}' has {requested} bytes, its tensors need {end}")
    # An empty tensor needs a region too.
    return _Plan(name, max(requested or end, 1), inputs, places)


def _carry_out(
    plans: list[_Plan], input_count: int, client: Any, protocol: str, kind: _Kind
) -> tuple[list[Any], list[ShmRegion], list[ShmRegion]]:
    handles: list[Any] = []
    registered: list[Any] = []
    try:
        for plan in plans:
            handle = kind.create(plan.name, plan.byte_size)
            handles.append(handle)
            for array, offset in plan.inputs:
                kind.write(handle, array, offset)
        for plan, handle in zip(plans, handles):
            try:
                kind.register(client, handle, plan.name, plan.byte_size)
            except BaseException:
                # The answer may have been lost. A registered region with the key of this handle was registered by this call.
                if kind.is_registered(client, handle, plan.name, plan.byte_size):
                    registered.append(handle)
                raise
            registered.append(handle)
    except BaseException:
        for handle in registered:
            _failure(partial(_unregister, handle, client))
        _failure(partial(cleanup_shm_regions, handles))
        raise
    places = [place for plan in plans for place in plan.places]
    return handles, places[:input_count], places[input_count:]


def _write_system(handle: SystemHandle, array: np.ndarray, offset: int) -> None:
    handle.region.write(array, offset)


def _register_system(client: Any, handle: SystemHandle, name: str, byte_size: int) -> None:
    client.register_system_shared_memory(name, handle.key, byte_size)


def _is_registered_system(client: Any, handle: SystemHandle, name: str, byte_size: int) -> bool:
    try:
        status = client.get_system_shared_memory_status(name)
    except Exception:  # noqa: BLE001 - no server, or no such region
        return False
    regions = status if isinstance(status, list) else list(status.regions.values())
    keys = [one["key"] if isinstance(one, dict) else one.key for one in regions]
    return handle.key in keys


_SYSTEM = _Kind(
    create=SystemHandle,
    write=_write_system,
    register=_register_system,
    is_registered=_is_registered_system,
)


def _cuda_kind() -> _Kind:
    from tritonclient.utils import cuda_shared_memory as cuda

    def write(handle: Any, array: np.ndarray, _offset: int) -> None:
        if array.size:
            content = _serialised(array) if _is_bytes(array) else np.ascontiguousarray(array)
            cuda.set_shared_memory_region(handle, [content])

    def register(client: Any, handle: Any, name: str, byte_size: int) -> None:
        client.register_cuda_shared_memory(name, cuda.get_raw_handle(handle), DEVICE_ID, byte_size)

    return _Kind(
        create=lambda name, byte_size: cuda.create_shared_memory_region(name, byte_size, DEVICE_ID),
        write=write,
        register=register,
        # The server's status does not contain the handle of a region.
        is_registered=lambda *_: False,
    )


def _serialised(array: np.ndarray) -> np.ndarray:
    elements = _datatypes.encoded_elements(array)
    content = np.empty(_datatypes.encoded_byte_size(elements), dtype=np.uint8)
    _datatypes.write_elements(elements, content.data)
    return content


def _is_bytes(array: np.ndarray) -> bool:
    return _datatypes.datatype_of(array) == "BYTES"


def _byte_size(array: np.ndarray) -> int:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"an input must be a numpy array, got {type(array).__name__}")
    if _datatypes.datatype_of(array) is None:
        raise ValueError(f"an input has dtype {array.dtype}, which the protocol has no datatype for")
    return _datatypes.encoded_byte_size(_datatypes.encoded_elements(array)) if _is_bytes(array) else array.nbytes


def _output_byte_size(output: Any) -> int:
    try:
        name, byte_size = output
        byte_size = operator.index(byte_size)
    except (TypeError, ValueError):
        raise ValueError(f"an output is a pair of its name and its byte size, got {output!r}") from None
    if byte_size < 0:
        raise ValueError(f"output '{name}' cannot have {byte_size} bytes")
    return byte_size


def _unregister(handle: Any, client: Any) -> None:
    if isinstance(handle, SystemHandle):
        client.unregister_system_shared_memory(handle.name)
    else:
        client.unregister_cuda_shared_memory(handle._triton_shm_name)


def _destroy(handle: Any) -> None:
    if isinstance(handle, SystemHandle):
        handle.region.abandon()
        return
    from tritonclient.utils import cuda_shared_memory as cuda

    cuda.destroy_shared_memory_region(handle)


def _check_protocol(protocol: str) -> None:
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be 'http' or 'grpc', got '{protocol}'")


def _failure(step: Callable[[], Any]) -> Optional[Exception]:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other steps come first
        return error
    return None


def _raise_first(failures: Sequence[Optional[Exception]]) -> None:
    for failure in failures:
        if failure is not None:
            raise failure
