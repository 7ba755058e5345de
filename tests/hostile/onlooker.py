#!/usr/bin/env python3
"""How long does a well-behaved client wait for its answers, and are they exact?

    onlooker.py PROTOCOL --http … --grpc … --session … [--uid USER] [--nice N] [--patient]

A process of its own, so that it measures the server and not the test. It says `asking` once it is answered. After each line of its
standard input it prints what happened since the line before: JSON, the fields of `Seen`. It ends with its standard input.
"""

import argparse
import concurrent.futures.thread  # noqa: F401 - like `idna` it would be imported when another user has no way to its file
import contextlib
import ctypes
import dataclasses
import encodings.idna  # noqa: F401
import http.client
import json
import math
import os
import pathlib
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "conformance")]

import grpc  # noqa: E402
from clients import Refused  # noqa: E402
from witness import Witness, are_answered  # noqa: E402

# So that the onlookers do not themselves keep a processor busy.
PAUSE_S = 0.005
PR_SET_PDEATHSIG = 1
SHORT_OF_MEMORY = (503, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


@dataclasses.dataclass
class Seen:
    """What a client saw in some seconds. Times are in milliseconds."""

    answers: int = 0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    # Refusals for lack of memory, connections that were ended, and outputs for which no lease was left.
    refused: int = 0
    no_lease: int = 0
    failure: str = ""


class Onlooker(Witness):
    """A witness that notes how long each answer took. A patient one accepts that the server has no memory for it at times."""

    def __init__(self, protocol: str, server, is_patient: bool):
        super().__init__(protocol, server)
        self.daemon, self.is_patient = True, is_patient
        self.times_s, self.refused, self.no_lease = [], 0, 0

    def through_memory(self, *given) -> None:
        self.timed(super().through_memory, *given)

    def inline(self, *given) -> None:
        self.timed(super().inline, *given)

    def to_a_lease(self, *given) -> None:
        try:
            super().to_a_lease(*given)
        except Refused as refusal:
            if refusal.status not in SHORT_OF_MEMORY:
                raise
            self.no_lease += 1

    def timed(self, call, *given) -> None:
        time.sleep(PAUSE_S)
        begun = time.monotonic()
        try:
            call(*given)
        except (Refused, OSError, http.client.HTTPException) as failure:
            if not self.is_patient or getattr(failure, "status", 503) not in SHORT_OF_MEMORY:
                raise
            self.refused += 1
        else:
            self.times_s.append(time.monotonic() - begun)

    def seen(self) -> Seen:
        """What it saw since it was asked last."""
        times_s, self.times_s = sorted(self.times_s), []
        refused, self.refused = self.refused, 0
        no_lease, self.no_lease = self.no_lease, 0
        failure = repr(self.failure) if self.failure else ""
        if not times_s:
            return Seen(0, 0.0, 0.0, refused, no_lease, failure)
        p99_s = times_s[math.ceil(0.99 * len(times_s)) - 1]
        return Seen(len(times_s), 1000 * p99_s, 1000 * times_s[-1], refused, no_lease, failure)


def address_parser() -> argparse.ArgumentParser:
    """Where the server is, and which user to be."""
    parser = argparse.ArgumentParser()
    for place in ("http", "grpc", "metrics", "session"):
        parser.add_argument(f"--{place}", default="")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--nice", type=int, default=0)
    return parser


def become(uid: int | None, niceness: int) -> None:
    """Another user from now on, which only root may."""
    os.nice(niceness)
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    # After a change of the user, which takes this back.
    die_with_the_parent()


def die_with_the_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    parser = address_parser()
    parser.add_argument("protocol", choices=["http", "grpc", "session"])
    parser.add_argument("--patient", action="store_true")
    args = parser.parse_args()
    become(args.uid, args.nice)
    onlooker = Onlooker(args.protocol, args, args.patient)
    onlooker.start()
    are_answered([onlooker], 20)
    assert onlooker.failure is None, onlooker.failure
    print("asking", flush=True)
    for _ in sys.stdin:
        print(json.dumps(dataclasses.asdict(onlooker.seen())), flush=True)
    onlooker.ended.set()
    with contextlib.suppress(RuntimeError):
        onlooker.join(5)


if __name__ == "__main__":
    main()
