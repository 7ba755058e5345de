"""Where do coroutines of a model run? On an event loop in a separate thread, which is started for the first coroutine."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from typing import Any, Awaitable

from .errors import CALLERS


async def _outcome(work: Awaitable[Any]) -> Any:
    return await work


CALLERS.add(_outcome.__code__)


@functools.lru_cache(maxsize=1)
def _background() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="nerite-loop", daemon=True).start()
    return loop


def awaited(work: Awaitable[Any]) -> Any:
    """The return value of the coroutine. Its exception is raised here."""
    return asyncio.run_coroutine_threadsafe(_outcome(work), _background()).result()


def begun(work: Awaitable[Any]) -> "concurrent.futures.Future[Any]":
    """Starts the coroutine, and returns its future. Other coroutines may run at the same time."""
    return asyncio.run_coroutine_threadsafe(_outcome(work), _background())


def is_busy() -> bool:
    """Whether the loop has pending tasks."""
    return bool(asyncio.all_tasks(_background()))
