"""Where is ``tritonclient.grpc.auth``?"""

from tritonclient.grpc.auth import *  # noqa: F403
from tritonclient.grpc.auth import __all__ as __all__
