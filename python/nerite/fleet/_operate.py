"""What can be done with a fleet?

Each call changes the state that the fleet's controller works towards, and waits until it is reached. The caller can end meanwhile: the controller goes on.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

from nerite.fleet._decide import FAILURES_MAX
from nerite.fleet._spec import FleetError, Spec, read

Source = Union[str, "os.PathLike[str]", Mapping[str, Any], Spec]
LOOK_EVERY_S = 0.25
# How long the controller may take to answer. After its node ended, Ray starts it again on the next head node.
ANSWER_S = 30.0


def up(source: Source, *, address: Optional[str] = None, within_s: Optional[float] = None) -> Dict[str, Any]:
    """Makes the fleet what the file or dict says, and returns its status when it is.

    A fleet that is up gets new settings: replicas whose models, flags or resources differ are replaced one at a time, as by :func:`roll`. ``address`` names the
    Ray cluster, of which this host is a node; by default the one that runs here. ``within_s`` bounds the wait. Raises FleetError if the fleet is not ready in time, or went back.
    """
    return _change(source, address, within_s, is_roll=False)


def roll(source: Source, *, address: Optional[str] = None, within_s: Optional[float] = None) -> Dict[str, Any]:
    """Replaces all replicas one at a time, also if only the files of the models changed. Goes back if a new one does not get ready, and raises FleetError."""
    return _change(source, address, within_s, is_roll=True)


def status(name: str, *, address: Optional[str] = None) -> Dict[str, Any]:
    """The replicas and proxies of a fleet. Raises FleetError if there is none of this name."""
    from nerite.fleet import _cluster

    _cluster.connect(address)
    if _cluster.load(name) is None:
        raise FleetError(f"there is no fleet '{name}'; the cluster has {', '.join(_cluster.fleets()) or 'none'}")
    return _status(name)


def down(name: str, *, address: Optional[str] = None, within_s: Optional[float] = None) -> None:
    """Stops a fleet. Its replicas complete their requests. Does nothing if there is none."""
    import ray

    from nerite.fleet import _cluster

    _cluster.connect(address)
    if _cluster.load(name) is not None:
        ray.get(_controller(name).end.remote())
        _wait(lambda: _cluster.load(name) is None, within_s, f"fleet '{name}' has not ended")
    actor = _cluster.controller(name)
    if actor is not None:
        ray.kill(actor)


def _change(source: Source, address: Optional[str], within_s: Optional[float], is_roll: bool) -> Dict[str, Any]:
    spec = source if isinstance(source, Spec) else read(source)
    import ray

    from nerite.fleet import _cluster

    _cluster.connect(address)
    _refuse_ports_of_others(spec)
    made, why = ray.get(_controller(spec.name).change.remote(spec.to_json(), is_roll))
    if why:
        raise FleetError(why)
    spec = Spec.from_json(made)
    _wait(lambda: _is_reached(spec), within_s, f"fleet '{spec.name}' is not ready")
    return _status(spec.name)


def _refuse_ports_of_others(spec: Spec) -> None:
    """Refuses the ports of another fleet of the cluster: there is one proxy of each on each node."""
    from nerite.fleet import _cluster

    for name in _cluster.fleets():
        state = _cluster.load(name)
        if name == spec.name or state is None:
            continue
        other = state.spec.proxy
        shared = {spec.proxy.http_port, spec.proxy.grpc_port} & {other.http_port, other.grpc_port}
        if shared:
            raise FleetError(f"port {min(shared)} is that of fleet '{name}'; give this one other ports by proxy.http_port and proxy.grpc_port")


def _is_reached(spec: Spec) -> bool:
    """Whether the fleet is what it is to be. Raises FleetError if it went back."""
    from nerite.fleet import _cluster

    state = _cluster.load(spec.name)
    if state is None:
        raise FleetError(f"fleet '{spec.name}' was ended meanwhile")
    if state.spec.release != spec.release:
        raise FleetError(state.note or f"fleet '{spec.name}' was changed to release {state.spec.release} meanwhile")
    shown = _status(spec.name)
    if shown["published"] != spec.to_json():
        return False
    if why := _why_never(spec, shown):
        raise FleetError(f"{why}; the fleet goes on trying: see `nerite fleet status {spec.name}`")
    if shown["is_rolling"]:
        return False
    ready = [one for one in shown["replicas"] if one.get("is_ready") and not one["is_lost"] and not one.get("is_stopping") and one["release"] == spec.release]
    serving = [one for one in shown["proxies"] if one.get("is_live") and one["version"] == shown["version"]]
    return len(ready) == len(shown["replicas"]) == shown["wanted"] and len(serving) == len(shown["proxies"]) > 0


def _why_never(spec: Spec, shown: Dict[str, Any]) -> str:
    """Why it does not get ready by itself. Empty if it may. During a roll the controller decides that."""
    for one in shown["proxies"]:
        if one.get("error") and not one.get("is_live") and "host" in one:
            return f"the proxy on {one['host']} does not serve: {one['error']}"
    if shown.get("is_rolling"):
        return ""
    for one in shown["replicas"]:
        if one["release"] == spec.release and one.get("failures", 0) >= FAILURES_MAX:
            return f"replica {one['id']} on {one['host']} does not get ready: {one['error']}"
        if one["release"] == spec.release and one["waits_s"] > spec.rollout.ready_within_s:
            needs = ", ".join(f"{value:g} {name}" for name, value in dataclasses.asdict(spec.resources).items() if value)
            return f"replica {one['id']} was not ready within {spec.rollout.ready_within_s:g} s; has a node room for {needs}?"
    return ""


def _controller(name: str) -> Any:
    """The fleet's controller, started now if there is none."""
    import ray

    from nerite.fleet import _cluster
    from nerite.fleet._controller import Controller

    options = {**_cluster.detached(name, _cluster.CONTROLLER), "num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    return ray.remote(Controller).options(resources=_cluster.HEAD, get_if_exists=True, **options).remote(name)


def _status(name: str) -> Dict[str, Any]:
    import ray

    actor = _controller(name)
    try:
        found: Dict[str, Any] = ray.get(actor.status.remote(), timeout=ANSWER_S)
    except ray.exceptions.RayError as error:
        raise FleetError(f"the controller of fleet '{name}' does not answer: {error}; its replicas serve on; is Ray's head node up?") from None
    return found


def _wait(is_done: Callable[[], bool], within_s: Optional[float], what: str) -> None:
    deadline_s = None if within_s is None else time.monotonic() + within_s
    while not is_done():
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise FleetError(f"{what} after {within_s:g} s; see `nerite fleet status`")
        time.sleep(LOOK_EVERY_S)


def table(shown: Dict[str, Any]) -> List[str]:
    """The lines of `nerite fleet status`."""
    ready = sum(bool(one.get("is_ready")) and not one["is_lost"] for one in shown["replicas"])
    state = "ending" if shown.get("is_ending") else "rolling" if shown.get("is_rolling") else "up"
    lines = [f"fleet {shown['name']}: {state}, release {shown.get('release', '?')}, {ready} of {shown['wanted']} replicas ready"]
    if shown.get("error"):
        lines.append(f"the controller's last look failed: {shown['error']}")
    if shown.get("note"):
        lines.append(shown["note"])
    rows = [("REPLICA", "RELEASE", "STATE", "HTTP", "GRPC", "PENDING", "RESTARTS")]
    for one in shown["replicas"]:
        rows.append((one["id"], one["release"], _word(one), one.get("http", "-"), one.get("grpc", "-"), f"{one.get('pending', 0):g}", str(one.get("restarts", 0))))
    lines += _aligned(rows)
    proxies = [("PROXY ON", "STATE", "RESTARTS")]
    for one in shown["proxies"]:
        proxies.append((one.get("host", one["node"]), one["error"].splitlines()[0] if one.get("error") else "up" if one.get("is_live") else "starting", str(one.get("restarts", 0))))
    return [*lines, *_aligned(proxies), *(f"{one['id']}: {one['error']}" for one in shown["replicas"] if one.get("error"))]


def _word(one: Dict[str, Any]) -> str:
    if one["is_lost"]:
        return "lost" if "http" in one else "starting"
    if one.get("is_stopping"):
        return "stopping"
    return "ready" if one.get("is_ready") else "starting"


def _aligned(rows: List[Any]) -> List[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
