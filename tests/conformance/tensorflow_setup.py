"""Where is the backend of TensorFlow's graphs, and how do tests make graphs of their own?"""

import pathlib
import struct

import numpy as np
import pytest
from clients import Given
from servers import ROOT

LIBRARY = ROOT / "target" / "release" / "backends" / "tensorflow" / "libtriton_tensorflow.so"
MODELS = ROOT / "tests" / "models" / "tensorflow"

NAMES = {np.dtype(kind): name for kind, name in [
    (np.bool_, "BOOL"), (np.uint8, "UINT8"), (np.uint16, "UINT16"), (np.uint32, "UINT32"), (np.uint64, "UINT64"),
    (np.int8, "INT8"), (np.int16, "INT16"), (np.int32, "INT32"), (np.int64, "INT64"),
    (np.float16, "FP16"), (np.float32, "FP32"), (np.float64, "FP64"),
]}  # fmt: skip


def backend_directory(launcher) -> pathlib.Path:
    if launcher.oracle:
        pytest.skip("Triton 2.51 has no backend of TensorFlow's graphs any more")
    if not LIBRARY.exists():
        pytest.skip("the backend is not built: cargo xtask tensorflow")
    return LIBRARY.parents[1]


def given(name: str, values: np.ndarray) -> Given:
    """An array as an input; one of bytes as strings."""
    values = np.ascontiguousarray(values)
    if values.dtype.kind in "SO":
        raw = b"".join(struct.pack("<I", len(one)) + one for one in values.flatten().tolist())
        return Given(name, "BYTES", list(values.shape), raw)
    return Given(name, NAMES[values.dtype], list(values.shape), values.tobytes())


def array(output) -> np.ndarray:
    """An output as an array."""
    if output.datatype != "BYTES":
        kinds = {name: kind for kind, name in NAMES.items()}
        return np.frombuffer(output.raw, kinds[output.datatype]).reshape(output.shape)
    found, raw = [], output.raw
    while raw:
        (length,) = struct.unpack("<I", raw[:4])
        found.append(raw[4 : 4 + length])
        raw = raw[4 + length :]
    return np.array(found, dtype=object).reshape(output.shape)


# ------------------------------------------------------------------------------------------ graphs, as protobuf has them

KINDS = {np.dtype(np.float32): 1, np.dtype(np.int32): 3, np.dtype(np.int64): 9}
FLOAT, INT32, STRING, INT64 = 1, 3, 7, 9


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes(found + bytes([number]))


def part(field: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def dims(shape) -> bytes:
    return b"".join(part(2, number(1, dim)) for dim in shape)


class Shape(tuple):
    """The shape of a placeholder."""


def attribute(value) -> bytes:
    """A node's attribute: a bool, a list of numbers, a text, a shape, an array, or ("type", number)."""
    if isinstance(value, bool):
        return number(5, value)
    if isinstance(value, int):
        return number(3, value)
    if isinstance(value, (bytes, str)):
        return part(2, value)
    if isinstance(value, Shape):
        return part(7, dims(value))
    if isinstance(value, np.ndarray):
        content = number(1, KINDS[value.dtype]) + part(2, dims(value.shape)) + part(4, value.tobytes())
        return part(8, content)
    if isinstance(value, tuple) and value[0] == "type":
        return number(6, value[1])
    if isinstance(value, list):
        return part(1, b"".join(number(3, one) for one in value))
    raise TypeError(value)


def node(name: str, op: str, *inputs: str, **attributes) -> bytes:
    content = part(1, name) + part(2, op) + b"".join(part(3, one) for one in inputs)
    for key, value in attributes.items():
        content += part(5, part(1, key) + part(2, attribute(value)))
    return part(1, content)


def placeholder(name: str, *shape: int, kind: int = FLOAT) -> bytes:
    return node(name, "Placeholder", dtype=("type", kind), shape=Shape(shape))


def constant(name: str, values: np.ndarray) -> bytes:
    return node(name, "Const", dtype=("type", KINDS[values.dtype]), value=values)


def put(repository: pathlib.Path, name: str, graph: bytes, config: str = "") -> None:
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.graphdef").write_bytes(graph)
    (repository / name / "config.pbtxt").write_text(f'platform: "tensorflow_graphdef"\n{config}\n')
