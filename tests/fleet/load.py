"""Which requests fail while something happens to a fleet?

Clients over HTTP and gRPC, NVIDIA's own, send requests at a rate that two processors hold, and check each answer.
"""

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import tritonclient.grpc
import tritonclient.http

# Seconds between two requests of a client, and how long one may take.
PAUSE_S, LIMIT_S = 0.04, 20.0


@dataclass
class Load:
    """Clients that send requests to a proxy until the end of the `with` block."""

    address: str
    http_port: int = 8000
    grpc_port: int = 8001
    #: Clients of each protocol, by the model that they call.
    clients: dict[str, int] = field(default_factory=lambda: {"release": 2, "slow": 2})
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    #: The releases that answered, each with the time of its last answer.
    releases: dict[int, float] = field(default_factory=dict)
    longest_s: float = 0.0

    def __enter__(self) -> "Load":
        self._ending = threading.Event()
        self._lock = threading.Lock()
        work = [(protocol, model) for protocol in ("http", "grpc") for model, count in self.clients.items() for _ in range(count)]
        self._threads = [threading.Thread(target=self._run, args=one) for one in work]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self, protocol: str, model: str) -> None:
        library = tritonclient.http if protocol == "http" else tritonclient.grpc
        options = {"connection_timeout": LIMIT_S, "network_timeout": LIMIT_S} if protocol == "http" else {}
        more = {"client_timeout": LIMIT_S} if protocol == "grpc" else {}
        random = np.random.default_rng()
        with library.InferenceServerClient(f"{self.address}:{self.http_port if protocol == 'http' else self.grpc_port}", **options) as client:
            while not self._ending.wait(PAUSE_S):
                sent = random.random(16, np.float32).round(3)
                tensor = library.InferInput("INPUT0", [16], "FP32")
                tensor.set_data_from_numpy(sent)
                began = time.monotonic()
                try:
                    self._check(protocol, model, sent, client.infer(model, [tensor], **more).as_numpy("OUTPUT0"), began)
                except Exception as error:  # noqa: BLE001 - each is a failed request, whatever it is
                    self._note(f"{protocol} {model} at {time.monotonic():.2f} after {time.monotonic() - began:.2f} s: {error!r}", began)

    def _check(self, protocol: str, model: str, sent: np.ndarray, got: np.ndarray, began: float) -> None:
        difference = got - sent
        release = round(float(difference[0]))
        is_right = np.allclose(difference, release, atol=1e-3) and (release > 0) == (model == "release")
        self._note("" if is_right else f"{protocol} {model}: wrong answer {got}", began, release)

    def _note(self, failure: str, began: float, release: int = 0) -> None:
        with self._lock:
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - began)
            if failure:
                self.failures.append(failure)
                return
            self.answered += 1
            if release:
                self.releases[release] = max(self.releases.get(release, 0.0), now)

    def more(self, count: int = 100) -> "bool":
        """Whether as many requests were answered since the last call of `mark`."""
        return self.answered - self._marked >= count

    def mark(self) -> None:
        self._marked = self.answered
