"""Which memory is not used again, because a forked child may have arrays over it?

A child has all objects that its parent had at the fork, arrays over shared memory included. The parent does not see when the child drops them. Therefore memory
that was lent before a fork is never lent again: pools and sessions are *outdated* by a fork, and their users make new ones for further calls.

``subprocess`` without ``preexec_fn`` outdates nothing, because its children run another program.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Outdated(Protocol):
    """A pool or a session."""

    def before_fork(self) -> None:
        """From now on no memory is used again that was given back after this call. It changes nothing but flags, because other threads run
        meanwhile."""

    def after_fork(self) -> None:
        """Called in the parent after the fork. The child has no arrays over memory that is lent from now on."""


# By id. A WeakSet cannot be listed while other threads add to it.
_watched: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
# One entry for each fork in progress. Appending and popping are atomic.
_in_progress: list[None] = []


def watch(one: Outdated) -> None:
    """Notifies the object of forks. If a fork is in progress, another thread may be running it, so the object is notified of this fork too."""
    _watched[id(one)] = one
    if _in_progress:
        one.before_fork()


def _before() -> None:
    _in_progress.append(None)
    for one in _all():
        one.before_fork()


def _after_in_parent() -> None:
    _in_progress.pop()
    if not _in_progress:
        for one in _all():
            one.after_fork()


def _all() -> list[Any]:
    return [one for reference in _watched.valuerefs() if (one := reference()) is not None]


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_in_progress.clear)
