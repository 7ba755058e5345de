"""Where is ``tritonclient.http.auth``?"""

from tritonclient.http.auth import *  # noqa: F403
from tritonclient.http.auth import __all__ as __all__
