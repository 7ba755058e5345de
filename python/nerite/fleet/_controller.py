"""How does a fleet become what it is to be?

One Ray actor on the head node looks at all replicas twice a second, does what ``_decide`` says, and gives the endpoints to the proxies. It keeps nothing that it
could not find again: if it ends, Ray starts it again, and it goes on.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import secrets
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nerite.fleet import _cluster, _decide
from nerite.fleet._cluster import State
from nerite.fleet._proxy import ProxyActor
from nerite.fleet._replica import Replica
from nerite.fleet._spec import Spec

LOOK_EVERY_S = 0.5
# How long an actor may take to report.
REPORT_S = 1.0
# Another replica is started for one that has not reported for this long. If it comes back, one too many is there, and one stops.
GONE_S = 2.0
# And that one is ended after this long.
GONE_MAX_S = 60.0
# A new controller waits this long for the reports of the replicas that it finds.
FOUND_S = 5.0
# A replica that was stopped is ended this long after the time for its requests is over.
LATE_S = 15.0
# How long a proxy may take to end.
PROXY_ENDS_S = 15.0
log = logging.getLogger("nerite.fleet")


@dataclasses.dataclass
class Known:
    """What the controller remembers of a replica between two looks."""

    actor: Any
    release: str
    starting_since_s: Optional[float]
    #: Its last report, which holds as long as it gives no other one.
    report: Dict[str, Any] = dataclasses.field(default_factory=dict)
    #: The node where it was placed, and then the one that it reports.
    node: str = ""
    #: Since when it has not reported. None if it does.
    lost_since_s: Optional[float] = None
    stopping_since_s: Optional[float] = None
    #: Whether an earlier controller started it.
    is_found: bool = False


class Controller:
    """The actor of a fleet's controller. Ray calls its methods in threads."""

    def __init__(self, fleet: str):
        self._fleet = fleet
        self._state: Optional[State] = None
        # Why the last look failed.
        self._error = ""
        self._known: Dict[str, Known] = {}
        self._proxies: Dict[str, Dict[str, Any]] = {}
        self._published: Any = None
        # What the proxies got last is of this.
        self._published_spec = ""
        # Differs from that of an earlier controller, so proxies take over what this one says.
        self._version = int(time.time() * 1000)
        self._count = 0
        self._quiet_since_s: Optional[float] = None
        self._totals: Dict[str, Tuple[float, float]] = {}
        # Held while the state is read and replaced. Nobody but this actor writes it.
        self._lock = threading.Lock()
        self._started_s = time.monotonic()
        threading.Thread(target=self._run, name="control", daemon=True).start()

    def status(self) -> Dict[str, Any]:
        """What `nerite fleet status` shows."""
        state = self._state
        now_s = time.monotonic()
        replicas = [
            {"id": id, "release": one.release, "is_lost": one.lost_since_s is not None, "waits_s": now_s - (one.starting_since_s or now_s), **one.report}
            for id, one in sorted(self._known.items())
        ]
        shown: Dict[str, Any] = {"name": self._fleet, "wanted": self._count, "replicas": replicas, "proxies": sorted(self._proxies.values(), key=lambda one: one.get("host", ""))}
        if state is not None:
            is_rolling = state.previous is not None
            shown.update(release=state.spec.release, is_rolling=is_rolling, is_ending=state.is_ending, note=state.note)
        return {**shown, "error": self._error, "published": self._published_spec, "version": self._version}

    def change(self, spec: str, is_roll: bool) -> Tuple[str, str]:
        """Makes this what the fleet is to be. Returns it with its revision, and why that cannot be."""
        wanted = Spec.from_json(spec)
        with self._lock:
            before = _cluster.load(self._fleet)
            if before is None:
                if is_roll:
                    return "", f"there is no fleet '{self._fleet}' to roll; start it by `nerite fleet up`"
                _cluster.save(State(wanted))
                return wanted.to_json(), ""
            if before.is_ending:
                return "", f"fleet '{self._fleet}' is ending; wait until `nerite fleet down {self._fleet}` has returned"
            wanted = dataclasses.replace(wanted, revision=before.spec.revision + is_roll)
            # During a roll, what worked before that is what the fleet goes back to.
            previous = before.previous or before.spec
            _cluster.save(State(wanted, previous if previous.release != wanted.release else None))
            return wanted.to_json(), ""

    def end(self) -> None:
        """Begins to end the fleet."""
        with self._lock:
            state = _cluster.load(self._fleet)
            if state is not None:
                _cluster.save(dataclasses.replace(state, is_ending=True))

    def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                self._look()
                self._error = ""
            except Exception as error:  # Ray may be away for a moment, and the next look finds it again.
                self._error = f"{type(error).__name__}: {error}"
                log.exception("fleet %s: this look failed", self._fleet)
            time.sleep(max(0.0, began_s + LOOK_EVERY_S - time.monotonic()))

    def _look(self) -> None:
        state = _cluster.load(self._fleet)
        self._state = state
        if state is None:
            self._known, self._proxies, self._published, self._count = {}, {}, None, 0
            return
        self._collect()
        now_s = time.monotonic()
        # A controller that was started again would take replicas that have not reported yet out of the proxies.
        if now_s - self._started_s < FOUND_S and any(one.is_found and not one.report for one in self._known.values()):
            return
        self._set_count(state.spec, now_s)
        self._publish(state)
        steps = _decide.next_steps(state.spec, self._count, self._seen(now_s), state.previous is not None, now_s)
        if state.is_ending:
            steps = _decide.Steps(stop=tuple(id for id, one in self._known.items() if one.stopping_since_s is None))
            if not self._known:
                self._end()
                return
        self._do(state, steps, now_s)

    def _collect(self) -> None:
        """Reads the reports of all replicas. Those of which Ray knows nothing are forgotten."""
        found = dict(_cluster.actors(self._fleet, "replica"))
        for id in set(self._known) - set(found):
            del self._known[id]
        for id, actor in found.items():
            self._known.setdefault(id, Known(actor, id.partition("-")[0], time.monotonic(), is_found=True))
        answers = {id: one.actor.report.remote() for id, one in self._known.items()}
        ray.wait(list(answers.values()), num_returns=len(answers), timeout=REPORT_S) if answers else None
        for id, answer in answers.items():
            self._note(id, answer)

    def _note(self, id: str, answer: Any) -> None:
        one = self._known[id]
        try:
            one.report = ray.get(answer, timeout=0)
            one.node, one.lost_since_s = one.report["node"], None
        except Exception:  # noqa: BLE001 - it starts, has ended, or is cut off; proxies check the server themselves
            one.lost_since_s = one.lost_since_s or time.monotonic()
        if one.report.get("is_ready"):
            one.starting_since_s = None
        if one.report.get("is_stopping") and one.stopping_since_s is None:
            one.stopping_since_s = time.monotonic()
        is_gone_for_good = one.lost_since_s is not None and time.monotonic() - one.lost_since_s > GONE_MAX_S and bool(one.report)
        if one.report.get("is_stopped") or self._is_late(one) or is_gone_for_good:
            ray.kill(one.actor)
            del self._known[id]

    def _is_late(self, one: Known) -> bool:
        if one.stopping_since_s is None or self._state is None:
            return False
        rollout = self._state.spec.rollout
        return time.monotonic() - one.stopping_since_s > rollout.drain_s + rollout.exit_s + LATE_S

    def _seen(self, now_s: float) -> List[_decide.Replica]:
        return [
            _decide.Replica(
                id=id,
                release=one.release,
                is_ready=one.lost_since_s is None and one.stopping_since_s is None and one.report.get("is_ready", False),
                is_stopping=one.stopping_since_s is not None,
                # One that has never reported waits for its place.
                is_gone=bool(one.report) and one.lost_since_s is not None and now_s - one.lost_since_s > GONE_S,
                starting_since_s=one.starting_since_s,
                failures=one.report.get("failures", 0),
                restarts=one.report.get("restarts", 0),
                pending=one.report.get("pending", 0.0),
            )
            for id, one in self._known.items()
        ]

    def _set_count(self, spec: Spec, now_s: float) -> None:
        """How many replicas there are to be, by the load since the last look."""
        serving = {id: one for id, one in self._known.items() if one.stopping_since_s is None}
        # A controller that was started again goes on with what is there.
        count = self._count or len(serving)
        reports = {id: one.report for id, one in serving.items() if one.report.get("is_ready") and one.lost_since_s is None}
        waited_us = requests = 0.0
        for id, report in reports.items():
            queue_us, number = report.get("queue_us", 0.0), report.get("requests", 0.0)
            before_us, before = self._totals.get(id, (queue_us, number))
            waited_us, requests = waited_us + max(queue_us - before_us, 0.0), requests + max(number - before, 0.0)
            self._totals[id] = (queue_us, number)
        for id in set(self._totals) - set(reports):
            del self._totals[id]
        pending = sum(report.get("pending", 0.0) for report in reports.values()) / max(len(reports), 1)
        load = _decide.Load(pending, waited_us / requests / 1000 if requests else 0.0)
        self._count, self._quiet_since_s = _decide.wanted_count(spec.replicas, count, len(reports), load, self._quiet_since_s, now_s)

    def _publish(self, state: State) -> None:
        """Gives the settings and the endpoints to the proxy of each node, and starts proxies where none is."""
        replicas = [
            {key: one.report[key] for key in ("host", "node", "http", "grpc", "session")}
            for _, one in sorted(self._known.items())
            if "http" in one.report and one.stopping_since_s is None
        ]
        wanted = (dataclasses.asdict(state.spec.proxy), replicas)
        if wanted != self._published:
            self._published, self._version = wanted, self._version + 1
        present = dict(_cluster.actors(self._fleet, "proxy"))
        nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for node in nodes - set(present):
            present[node] = self._start_proxy(node)
        for node in set(present) - nodes:
            ray.kill(present.pop(node))
        answers = {node: actor.update.remote(self._version, *wanted) for node, actor in present.items()}
        ray.wait(list(answers.values()), num_returns=len(answers), timeout=REPORT_S) if answers else None
        reports = {}
        for node, answer in answers.items():
            try:
                reports[node] = ray.get(answer, timeout=0)
            except Exception as error:  # noqa: BLE001 - it starts, or is cut off; the next look gives it the same
                reports[node] = {"node": node, "error": f"does not answer: {type(error).__name__}"}
        self._proxies, self._published_spec = reports, state.spec.to_json()

    def _start_proxy(self, node: str) -> Any:
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {**_cluster.detached(self._fleet, "proxy", node), "num_cpus": 0, "max_restarts": -1, "get_if_exists": True}
        return ray.remote(ProxyActor).options(scheduling_strategy=place, **options).remote(self._fleet)

    def _do(self, state: State, steps: _decide.Steps, now_s: float) -> None:
        if steps.back:
            assert state.previous is not None, "next_steps goes back only if there is something to go back to"
            why = "; ".join(filter(None, [steps.back, self._errors(state.spec.release)]))
            self._replace(state, State(state.previous, None, False, f"release {state.spec.release} failed, back to {state.previous.release}: {why}"))
            return
        if steps.is_complete and state.previous is not None:
            self._replace(state, State(state.spec, None, False, f"release {state.spec.release} replaced {state.previous.release}"))
        for _ in range(steps.start):
            self._start_replica(state.spec, now_s)
        for id in steps.stop:
            self._known[id].stopping_since_s = now_s
        if steps.stop:
            # They leave the proxies before they stop.
            self._publish(state)
            for id in steps.stop:
                self._known[id].actor.stop.remote()

    def _replace(self, state: State, new: State) -> None:
        """Replaces the state, unless a command has changed it meanwhile."""
        with self._lock:
            if _cluster.load(self._fleet) == state:
                _cluster.save(new)

    def _errors(self, release: str) -> str:
        return "; ".join(one.report["error"] for one in self._known.values() if one.release == release and one.report.get("error"))

    def _start_replica(self, spec: Spec, now_s: float) -> None:
        id = f"{spec.release}-{secrets.token_hex(3)}"
        needs = {"num_cpus": spec.resources.cpu, "num_gpus": spec.resources.gpu, "memory": spec.resources.memory_bytes or None}
        node = _decide.place(spec.resources, self._nodes(spec))
        # Where the room went to others meanwhile, Ray chooses.
        place = NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True) if node else "DEFAULT"
        options = {**_cluster.detached(self._fleet, "replica", id), "scheduling_strategy": place, **needs}
        # It is not restarted by Ray: the controller finds a better place, and sooner.
        actor = ray.remote(Replica).options(**options).remote(id, spec.to_json())
        self._known[id] = Known(actor, spec.release, now_s, node=node or "")

    def _nodes(self, spec: Spec) -> List[_decide.Node]:
        """The nodes that answer, with what the fleet's replicas leave of them."""
        silent = {one.node for one in self._known.values() if one.lost_since_s is not None and one.report}
        found = []
        for node in ray.nodes():
            if not node["Alive"] or node["NodeID"] in silent:
                continue
            count = sum(one.node == node["NodeID"] for one in self._known.values())
            has, needs = node["Resources"], spec.resources
            cpu, gpu, memory = (has.get(name, 0.0) - count * need for name, need in (("CPU", needs.cpu), ("GPU", needs.gpu), ("memory", needs.memory_bytes)))
            found.append(_decide.Node(node["NodeID"], cpu, gpu, memory, count))
        return found

    def _end(self) -> None:
        """Ends the proxies and removes the state. `nerite fleet down` ends this actor. If the command has ended before, the next `up` takes it."""
        proxies = [actor for _, actor in _cluster.actors(self._fleet, "proxy")]
        stops = [actor.stop.remote() for actor in proxies]
        ray.wait(stops, num_returns=len(stops), timeout=PROXY_ENDS_S) if stops else None
        for actor in proxies:
            ray.kill(actor)
        _cluster.forget(self._fleet)
