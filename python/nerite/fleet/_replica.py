"""How is one nerite process kept running?

A Ray actor starts the server by :func:`nerite.serve`, so the server ends with the actor, however that ends. If the server ends by itself, the actor
starts it again, at the same ports, at once and then with growing pauses. If the actor or its node
ends, the controller starts another one.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import threading
import time
from typing import Any, Dict, Optional, Tuple

import ray

from nerite import _probe, _serve
from nerite._folder import Folder
from nerite.fleet._spec import Spec

# The pause before a server that ended is started again, and the longest one. A server that was ready for as long starts at once again.
PAUSE_S, PAUSE_MAX_S = 0.5, 30.0
# How often the supervisor looks at its server. A model has five seconds to say that it is ready.
LOOK_EVERY_S, ANSWER_S = 0.5, 6.0
# A server that does not answer /v2/health/live for this long is killed.
SILENT_MAX_S = 30.0
ERROR_SHOWN_MAX = 2000
OK = 200
# The metrics that a report sums up, and their names there.
METRICS = {"nv_inference_pending_request_count": "pending", "nv_inference_queue_duration_us": "queue_us", "nv_inference_request_success": "requests"}
SAMPLE = re.compile(rf"^({'|'.join(METRICS)})(?:\{{[^}}]*\}})? (\S+)$", re.MULTILINE)


class Replica:
    """The actor of a replica. Ray calls its methods in threads."""

    def __init__(self, id: str, spec: str):
        self._id, self._spec = id, Spec.from_json(spec)
        self._host = ray.util.get_node_ip_address()
        self._node = ray.get_runtime_context().get_node_id()
        self._server: Optional[_serve.Server] = None
        self._ports: Dict[str, int] = {}
        # What the server said at the supervisor's last look.
        self._seen: Dict[str, Any] = {}
        self._models: Optional[Tuple[Folder, str]] = None
        self._failures, self._starts, self._error = 0, 0, ""
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._supervise, name="supervise", daemon=True).start()

    def report(self) -> Dict[str, Any]:
        """What the controller knows of this replica."""
        server = self._server
        report = {
            "id": self._id,
            "release": self._spec.release,
            "host": self._host,
            "node": self._node,
            "is_ready": False,
            "is_stopping": self._stopping.is_set(),
            "is_stopped": self._stopped.is_set(),
            "failures": self._failures,
            "restarts": max(self._starts - 1, 0),
            "error": self._error,
        }
        if server is None:
            return report
        places = {"http": server.http, "grpc": server.grpc, "metrics": server.metrics, "session": server.session_socket, "pid": server.pid}
        return {**report, **places, **self._seen}

    def stop(self) -> None:
        """Begins to stop: the server drains, completes its requests and ends. Returns at once."""
        self._stopping.set()

    def _supervise(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            began_s = time.monotonic()
            try:
                self._run()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next try may succeed, and the report shows it
                self._error = str(error)[-ERROR_SHOWN_MAX:]
                self._failures += 1
            lasted_s = time.monotonic() - began_s
            pause_s = 0.0 if lasted_s > PAUSE_MAX_S else min(max(pause_s * 2, PAUSE_S), PAUSE_MAX_S)
        if self._models is not None:
            self._models[0].remove()
        self._stopped.set()

    def _run(self) -> None:
        """Starts the server, and returns when it has ended."""
        if self._stopping.is_set():
            return
        self._starts += 1
        try:
            server = self._started()
        except _serve.ServerError as error:
            # Another program may have taken the ports meanwhile.
            if _serve.PORT_IS_TAKEN in str(error):
                self._ports = {}
            raise
        self._seen = {}
        self._server, self._failures, self._error = server, 0, ""
        try:
            self._until_ended(server)
        finally:
            server.stop()
            self._server = None
        if not self._stopping.is_set():
            self._error = f"the server ended; its log:\n{server.log}"[-ERROR_SHOWN_MAX:]

    def _started(self) -> _serve.Server:
        spec = self._spec
        flags: Dict[str, Any] = {
            "http_address": self._host,
            "grpc_address": self._host,
            # The proxies of all nodes name their clients.
            "trusted_proxies": [*spec.proxy.networks, self._host],
            "drain_seconds": spec.rollout.drain_s,
            "exit_timeout_secs": spec.rollout.exit_s,
            **self._ports,
            **{name.replace("-", "_"): value for name, value in spec.flags.items()},
        }
        if spec.models:
            flags.update(model_control_mode="explicit", load_model=list(spec.models))
        server = _serve.serve(self._repository(), ready_within=spec.rollout.ready_within_s, **flags)
        places = {"http_port": server.http, "grpc_port": server.grpc, "metrics_port": server.metrics}
        self._ports = {name: int(place.rpartition(":")[2]) for name, place in places.items()}
        return server

    def _repository(self) -> str:
        """The folder with the models. What is in a bucket is copied once, so that a server which starts again serves the same."""
        if not self._spec.is_bucket:
            return self._spec.model_repository
        if self._models is None:
            from nerite.fleet import _bucket

            folder = Folder()
            models = os.path.join(folder.path, "models")
            _bucket.fetch(self._spec.model_repository, models)
            self._models = (folder, models)
        return self._models[1]

    def _until_ended(self, server: _serve.Server) -> None:
        """Returns when the server has ended or is to stop. Kills it if it stays silent."""
        heard_s = time.monotonic()
        while not self._stopping.is_set():
            self._seen = {"is_ready": _status(server.http, "/v2/health/ready") == OK, **_load(server.metrics)}
            if server.wait(LOOK_EVERY_S) is not None:
                return
            if _status(server.http, "/v2/health/live") == OK:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > SILENT_MAX_S:
                os.kill(server.pid, signal.SIGKILL)


def _status(place: str, path: str) -> int:
    """The HTTP status of a path. 0 if there is no answer."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return _probe.get(place, path, is_behind_proxy=True, within_s=ANSWER_S)[0]
    return 0


def _load(place: str) -> Dict[str, float]:
    """The sums over all models: requests that wait, their time in queues so far, and their number so far."""
    text = ""
    with contextlib.suppress(OSError, http.client.HTTPException):
        text = _probe.get(place, "/metrics")[1]
    sums = dict.fromkeys(METRICS.values(), 0.0)
    for name, value in SAMPLE.findall(text):
        sums[METRICS[name]] += float(value)
    return sums
