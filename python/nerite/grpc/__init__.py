"""Where is ``tritonclient.grpc`` with managed buffers?

Replace ``import tritonclient.grpc as grpcclient`` by ``import nerite.grpc as grpcclient``. No other change is needed.
"""

import sys

import tritonclient.grpc as _origin
from tritonclient.grpc import *  # noqa: F403
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import *  # noqa: F403

from nerite import _names
from nerite._buffers import TensorBuffer
from nerite.grpc._client import InferenceServerClient
from nerite.grpc._tensors import InferInput, InferOutput, InferResult

# With this, `import nerite.grpc.service_pb2` finds the existing message classes, which can be registered only once.
for _module in (model_config_pb2, service_pb2, service_pb2_grpc):
    sys.modules[f"{__name__}.{_module.__name__.rsplit('.', 1)[-1]}"] = _module

_names.adopt(globals(), _origin)
__getattr__ = _names.fallback(__name__, _origin)
__all__ = [
    *_origin.__all__,
    "InferInput",
    "InferOutput",
    "InferResult",
    "InferenceServerClient",
    "TensorBuffer",
]
