"""Where is ``tritonclient.http`` with managed buffers?

Replace ``import tritonclient.http as httpclient`` by ``import nerite.http as httpclient``. No other change is needed.
"""

import tritonclient.http as _origin
from tritonclient.http import *  # noqa: F403
from tritonclient.utils import *  # noqa: F403

from nerite import _names
from nerite._buffers import TensorBuffer
from nerite.http._client import InferAsyncRequest, InferenceServerClient
from nerite.http._tensors import InferInput, InferOutput, InferResult

_names.adopt(globals(), _origin)
__getattr__ = _names.fallback(__name__, _origin)
__all__ = [
    *_origin.__all__,
    "InferAsyncRequest",
    "InferInput",
    "InferOutput",
    "InferResult",
    "InferenceServerClient",
    "TensorBuffer",
]
