"""What has ``tritonclient.grpc.aio``?

Everything, with nerite's ``InferInput``: the handle of a synchronous client can be an input here as well.
"""

import tritonclient.grpc.aio as _origin
from tritonclient.grpc.aio import *  # noqa: F403
from tritonclient.grpc.aio import InferenceServerClient

from nerite import _names
from nerite.grpc._tensors import InferInput

_names.adopt(globals(), _origin)
__getattr__ = _names.fallback(__name__, _origin)
__all__ = [*getattr(_origin, "__all__", ()), "InferInput", "InferenceServerClient"]
