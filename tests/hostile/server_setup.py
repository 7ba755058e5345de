"""What is the server like that the hostile tests hurt?"""

import importlib.util
import os
import pathlib

import pytest

DELAY_MS = 400
LEASE_BYTES_MAX = 96 << 20
SESSION_BYTES_MAX = 32 << 20

# What the allocator may keep for itself beyond the baseline, whatever a client did and however often. A test that lets a
# region's or a lease's memory leak once has more than that. A build with a sanitizer keeps much more.
RESIDENT_SLACK = int(os.environ.get("NERITE_RESIDENT_SLACK", 4 << 20))

DELAYED = f"""\
name: "NAME"
backend: "identity"
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 4 kind: KIND_CPU }} ]
parameters {{ key: "execute_delay_ms" value {{ string_value: "MS" }} }}
"""


def put_delayed(repository, name: str, delay_ms: int) -> None:
    """A model that waits, and then copies its input."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(DELAYED.replace("NAME", name).replace("MS", str(delay_ms)))


def onnxruntime_library() -> str:
    """The library that the installed Python package brings."""
    spec = importlib.util.find_spec("onnxruntime")
    found = sorted(pathlib.Path(spec.origin).parent.glob("capi/libonnxruntime.so*")) if spec else []
    return str(found[0]) if found else pytest.skip("there is no ONNX Runtime")
