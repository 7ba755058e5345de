"""Which replicas are started and stopped next?

Pure functions of what the fleet is to be, what its replicas reported, and the time.
"""

from __future__ import annotations

import dataclasses
import math
from typing import List, Optional, Sequence, Tuple

from nerite.fleet._spec import Resources, Scale, Spec

# A new replica whose server has ended this many times before it was ready does not get ready.
FAILURES_MAX = 3


@dataclasses.dataclass(frozen=True)
class Replica:
    """A replica as it last reported."""

    id: str
    release: str
    #: Whether its server is ready. It is not while it stops.
    is_ready: bool
    #: Whether it was stopped, and completes its requests.
    is_stopping: bool = False
    #: Whether it has not reported for so long that another one is started.
    is_gone: bool = False
    #: Since when it has been starting, by the controller's clock. None if it has been ready.
    starting_since_s: Optional[float] = None
    #: How often its server has ended before it was ready.
    failures: int = 0
    #: How often its server has ended and was started again.
    restarts: int = 0
    pending: float = 0.0


@dataclasses.dataclass(frozen=True)
class Steps:
    """What is done next."""

    #: How many replicas are started.
    start: int = 0
    #: The replicas that are stopped.
    stop: Tuple[str, ...] = ()
    #: Why the fleet goes back to its earlier release. Empty if it does not.
    back: str = ""
    #: Whether all replicas there are to be are ready, and no others are there.
    is_complete: bool = False


def next_steps(spec: Spec, count: int, replicas: Sequence[Replica], can_go_back: bool, now_s: float) -> Steps:
    """The next steps towards ``count`` replicas of the release of ``spec``."""
    present = [one for one in replicas if not one.is_stopping and not one.is_gone]
    new = [one for one in present if one.release == spec.release]
    old = [one for one in present if one.release != spec.release]
    if can_go_back:
        for one in new:
            if why := _hopeless(spec, one, now_s):
                return Steps(back=why)
    if old:
        return _replace(spec, count, new, old)
    if len(new) < count:
        return Steps(start=count - len(new))
    more = _least_needed(new)[: len(new) - count]
    return Steps(stop=tuple(one.id for one in more), is_complete=not more and all(one.is_ready for one in replicas))


def _hopeless(spec: Spec, one: Replica, now_s: float) -> str:
    """Why a new replica will not serve."""
    if one.restarts >= FAILURES_MAX:
        return f"replica {one.id} ended {one.restarts} times"
    if one.is_ready or one.starting_since_s is None:
        return ""
    if one.failures >= FAILURES_MAX:
        return f"replica {one.id} ended {one.failures} times before it was ready"
    if now_s - one.starting_since_s > spec.rollout.ready_within_s:
        return f"replica {one.id} was not ready within {spec.rollout.ready_within_s:g} s"
    return ""


def _replace(spec: Spec, count: int, new: List[Replica], old: List[Replica]) -> Steps:
    """One replica at a time is replaced."""
    ready = [one for one in [*new, *old] if one.is_ready]
    needed = count - (1 - spec.rollout.surge)
    is_one_starting = any(not one.is_ready for one in new)
    # An old replica that is not ready serves nobody.
    idle = [one for one in old if not one.is_ready]
    if len(new) >= count and not is_one_starting:
        # The rest are more than there are to be.
        return Steps(stop=tuple(one.id for one in old))
    if is_one_starting:
        return Steps()
    if len(new) + len(old) < count + spec.rollout.surge:
        return Steps(start=1)
    if idle:
        return Steps(stop=(idle[0].id,))
    return Steps(stop=(_least_needed(old)[0].id,) if len(ready) > needed else ())


def _least_needed(replicas: Sequence[Replica]) -> List[Replica]:
    """Replicas that are not ready first, then those with the fewest requests that wait."""
    return sorted(replicas, key=lambda one: (one.is_ready, one.pending, one.id))


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of the cluster, and what it has left."""

    id: str
    cpu: float
    gpu: float
    memory_bytes: float
    #: Replicas of the fleet that are there.
    replicas: int


def place(needs: Resources, nodes: Sequence[Node]) -> Optional[str]:
    """The node for a new replica: the one with the fewest replicas, and of those with the most processors left. None if no node has room."""
    room = [one for one in nodes if one.cpu >= needs.cpu and one.gpu >= needs.gpu and one.memory_bytes >= needs.memory_bytes]
    return min(room, key=lambda one: (one.replicas, -one.cpu, one.id)).id if room else None


@dataclasses.dataclass(frozen=True)
class Load:
    """The load of the fleet between two looks."""

    #: Requests that wait in a replica, on average.
    pending: float
    #: Milliseconds that the requests of this time waited, on average.
    queue_ms: float


def wanted_count(scale: Scale, count: int, ready: int, load: Load, quiet_since_s: Optional[float], now_s: float) -> Tuple[int, Optional[float]]:
    """How many replicas there are to be, and since when fewer would be enough (None if they would not).

    The number grows in proportion to the load, at most to its double, and only after all present replicas are ready. It falls by one after
    ``down_after_s`` in which one replica fewer would have had less than half of the load that adds one.
    """
    count = min(max(count, scale.min), scale.max)
    pressure = max(load.pending / scale.pending, load.queue_ms / scale.queue_ms)
    if pressure > 1:
        if ready < count:
            return count, None
        return min(math.ceil(count * min(pressure, 2.0)), scale.max), None
    if count <= scale.min or pressure * count / (count - 1) > 0.5:
        return count, None
    if quiet_since_s is None:
        return count, now_s
    if now_s - quiet_since_s < scale.down_after_s:
        return count, quiet_since_s
    return count - 1, now_s
