"""What does a fleet keep in Ray, and under which names?

All actors are detached and in one namespace, so they outlive the command that made them, and any node finds them. The fleet's state is a value in
the store of Ray's GCS, which outlives the head node if Ray has Redis.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any, Dict, Iterator, List, Optional

import ray
from ray.experimental import internal_kv

from nerite.fleet._spec import FleetError, Spec

NAMESPACE = "nerite"
CONTROLLER = "controller"
STORE = NAMESPACE.encode()
# Ray gives this resource to the head node.
HEAD = {"node:__internal_head__": 0.001}


@dataclasses.dataclass(frozen=True)
class State:
    """What is kept of a fleet."""

    spec: Spec
    #: What it was before the roll that goes on.
    previous: Optional[Spec] = None
    #: Whether all of it stops.
    is_ending: bool = False
    #: What the last roll came to, for `nerite fleet status`.
    note: str = ""


def connect(address: Optional[str]) -> None:
    """Connects this process to the Ray cluster of this host, or at ``address``. Raises FleetError."""
    if ray.is_initialized():
        return
    try:
        ray.init(address=address or "auto", namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise FleetError(f"no Ray cluster answers{' at ' + address if address else ''}: {error}; start one by `ray start --head`, or name its node by --address") from None


def detached(fleet: str, kind: str, id: str = "") -> Dict[str, Any]:
    """The options of an actor that outlives who makes it. A program that uses Ray itself has another namespace."""
    return {"name": actor_name(fleet, kind, id), "namespace": NAMESPACE, "lifetime": "detached", "max_concurrency": 4}


def load(name: str) -> Optional[State]:
    """The state of a fleet. None if there is no such fleet."""
    found = internal_kv._internal_kv_get(name.encode(), namespace=STORE)
    if not found:
        return None
    parts = json.loads(found)
    previous = parts["previous"] and Spec.from_json(parts["previous"])
    return State(Spec.from_json(parts["spec"]), previous, parts["is_ending"], parts["note"])


def save(state: State) -> None:
    """Keeps the state of a fleet."""
    parts = {
        "spec": state.spec.to_json(),
        "previous": state.previous and state.previous.to_json(),
        "is_ending": state.is_ending,
        "note": state.note,
    }
    internal_kv._internal_kv_put(state.spec.name.encode(), json.dumps(parts).encode(), overwrite=True, namespace=STORE)


def forget(name: str) -> None:
    """Removes the state of a fleet."""
    internal_kv._internal_kv_del(name.encode(), namespace=STORE)


def fleets() -> List[str]:
    """The names of all fleets of the cluster."""
    return sorted(key.decode() for key in internal_kv._internal_kv_list(b"", namespace=STORE))


def actor_name(fleet: str, kind: str, id: str = "") -> str:
    """The name of an actor: ``FLEET/controller``, ``FLEET/replica/ID``, ``FLEET/proxy/NODE``."""
    return "/".join(filter(None, [fleet, kind, id]))


def actors(fleet: str, kind: str) -> Iterator[tuple[str, Any]]:
    """The ids and handles of a fleet's actors of one kind."""
    prefix = actor_name(fleet, kind) + "/"
    for found in ray.util.list_named_actors(all_namespaces=True):
        name = found["name"]
        if found["namespace"] == NAMESPACE and name.startswith(prefix):
            # It may have ended since.
            with contextlib.suppress(ValueError):
                yield name[len(prefix) :], ray.get_actor(name, namespace=NAMESPACE)


def controller(fleet: str) -> Any:
    """The handle of a fleet's controller. None if there is none."""
    try:
        return ray.get_actor(actor_name(fleet, CONTROLLER), namespace=NAMESPACE)
    except ValueError:
        return None
