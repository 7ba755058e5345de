"""How do instances of a model share the data that its ``initialize`` loaded?

This process, the template, imports the model and runs ``initialize`` once. It runs no batches. Each instance is a fork of it with its own
channels, and shares its memory copy-on-write. A fork has only the thread that called fork, so a model that has started threads by then is
refused.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import warnings
from typing import Any, Optional, Tuple

from . import batch, workers

NATIVE_THREADS = (
    "{} native threads were started while initialize ran: a fork does not have them. Libraries that do not start them anew hang when they are "
    "used there; load only in initialize, and compute first in initialize_instance"
)


class Forked(BaseException):
    """Raised in the new process. It is not an Exception, because it must leave the template's loop of commands."""

    def __init__(self, channel: socket.socket, side: socket.socket, calls: socket.socket) -> None:
        super().__init__()
        self.ends: Tuple[socket.socket, socket.socket, socket.socket] = (channel, side, calls)


def refusal() -> Optional[str]:
    """Why this process cannot be forked after the model was initialized. None if it can."""
    names = [one.name for one in threading.enumerate() if one is not threading.main_thread() and one.name != batch.END_THREAD]
    if not names:
        return None
    return (
        f"SHARE_INITIALIZE: initialize left threads running ({', '.join(sorted(names)[:8])}), which its instances would not have; "
        "start them in initialize_instance(args), which is called in each instance"
    )


def thread_count() -> int:
    """The number of threads of this process, including native ones."""
    return len(os.listdir("/proc/self/task"))


def fork(descriptors: "list[int]", replaced: "list[int]") -> int:
    """Forks a process. The first three descriptors are its ends of the channels. The last two become its standard output (1) and its standard error
    (2), if ``replaced`` has that number. Otherwise the model has put a file of its own there, which stays. Raises :class:`Forked` in the new process,
    and returns the ID of that process here.
    """
    *sockets, stdout, stderr = descriptors
    ends = [socket.socket(fileno=one) for one in sockets]
    # Excludes present objects from garbage collection. A collection would write to each object, and so copy its page in each instance.
    gc.collect()
    gc.freeze()
    with warnings.catch_warnings(), open(stdout, "wb", buffering=0) as output, open(stderr, "wb", buffering=0) as error:
        # Python warns because of this package's own thread, which holds no lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if not pid:
            for descriptor, pipe in ((1, output), (2, error)):
                if descriptor in replaced:
                    os.dup2(pipe.fileno(), descriptor)
    if pid:
        for one in ends:
            one.close()
        return pid
    os.setpgid(0, 0)
    batch.is_fork = False
    workers.move_path()
    channel, side, calls = ends
    raise Forked(channel, side, calls)


def reap(pid: int) -> Optional[int]:
    """The status with which a forked process ended. None if the process still runs, or is not known any more."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if found == pid else None


def initialize_instance(model: Any, args: "dict[str, str]") -> None:
    """Calls the model's function for each instance."""
    if hasattr(model, "initialize_instance"):
        batch.call(model.initialize_instance, args)
