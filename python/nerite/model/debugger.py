"""How does a model's process wait for a debugger?"""

from __future__ import annotations

import os
import sys
from typing import Callable

from .loading import NotLoaded

# Only programs of the same host may attach, because a debugger runs any code.
HOST = "127.0.0.1"


def wait_for_client(model: str, instance: str, port: int, log: Callable[[str, str], None]) -> None:
    """Waits until a debugger has attached."""
    setting = f"--backend-config=python,debug={model}"
    # nerite's own modules have no files. Without this variable, the debugger would warn about them at each start.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    try:
        import debugpy
    except ImportError as error:
        raise NotLoaded(
            f"{setting}: instance '{instance}' cannot wait for a debugger, because its Python has no debugpy ({error}); "
            f"`{sys.executable} -m pip install debugpy`"
        ) from None
    try:
        debugpy.listen((HOST, port))
    except (OSError, RuntimeError) as error:
        raise NotLoaded(
            f"{setting}: instance '{instance}' cannot wait for a debugger at {HOST}:{port}: {error}; choose another port, or unload the model first if an "
            f"older version of it has the port"
        ) from None
    log("WARNING", f"model instance '{instance}' waits for a debugger (debugpy) at {HOST}:{port}; its time limits are suspended ({setting})")
    debugpy.wait_for_client()
    log("INFO", f"a debugger has attached to model instance '{instance}'")
