"""How do instances of a model share what its ``initialize`` loaded?

This process, the template, imports the model and runs ``initialize`` once. It executes nothing; each instance is a fork of it, which has
channels of its own and its memory, copied where one of them writes. A fork has the thread that forked and no other, so a model that
has threads by then is refused.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import warnings
from typing import Any, Optional, Tuple

from . import batch, decoupled, workers

NATIVE_THREADS = (
    "{} native threads were started while initialize ran: a fork does not have them. Libraries that do not start them anew hang when they are "
    "used there; load only in initialize, and compute first in initialize_instance"
)


class Forked(BaseException):
    """This is the new process. Not an Exception: it unwinds the template's commands."""

    def __init__(self, channel: socket.socket, side: socket.socket, calls: socket.socket) -> None:
        super().__init__()
        self.ends: Tuple[socket.socket, socket.socket, socket.socket] = (channel, side, calls)


def refusal() -> Optional[str]:
    """Why this process cannot be forked, now that the model is initialized."""
    names = [one.name for one in threading.enumerate() if one is not threading.main_thread() and one.name != batch.END_THREAD]
    if not names:
        return None
    return (
        f"SHARE_INITIALIZE: initialize left threads running ({', '.join(sorted(names)[:8])}), which its instances would not have; "
        "start them in initialize_instance(args), which is called in each instance"
    )


def thread_count() -> int:
    """The threads of this process, native ones as well."""
    return len(os.listdir("/proc/self/task"))


def fork(descriptors: "list[int]") -> int:
    """Makes one more process, which has these ends of channels; raises :class:`Forked` there, and returns its number here."""
    ends = [socket.socket(fileno=one) for one in descriptors]
    # What lies there is looked at no more: a collection would write to each object, and so copy its page in each instance.
    gc.collect()
    gc.freeze()
    with warnings.catch_warnings():
        # Python sees our own thread, which holds no lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        for one in ends:
            one.close()
        return pid
    os.setpgid(0, 0)
    batch._PID = decoupled._PID = os.getpid()
    workers.move_path()
    channel, side, calls = ends
    raise Forked(channel, side, calls)


def reap(pid: int) -> Optional[int]:
    """How a process ended that was forked here; None if it has not, or is known no more."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if found == pid else None


def initialize_instance(model: Any, args: "dict[str, str]") -> None:
    """What the model wants to do in each instance."""
    if hasattr(model, "initialize_instance"):
        batch.call(model.initialize_instance, args)
