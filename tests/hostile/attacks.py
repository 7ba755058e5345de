#!/usr/bin/env python3
"""Which attacks does the server have to survive, and how are they run?

    attacks.py --http … --grpc … --metrics … --session … [--uid USER] [--nice N] [--seconds N] NAME…
    attacks.py --http … …          then, on the standard input, lines `SECONDS NAME…`

Each name is a process of its own, made by fork, which attacks again and again until it is killed. What comes out, for each line, is
JSON: how often each attack was carried out, and the tracebacks of those that could not be.
"""

import contextlib
import json
import mmap
import os
import pathlib
import resource
import signal
import struct
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "conformance")]

import attack_configurations  # noqa: E402 - lists its attacks, too
import attack_connections  # noqa: E402, F401 - lists its attacks
import attack_grammar  # noqa: E402, F401 - lists its attacks
import attack_page  # noqa: E402, F401 - lists its attacks
from attack_memory import OBJECTS  # noqa: E402
from attack_messages import messages_of_names, texts_of_names  # noqa: E402
from attack_table import ATTACKS, DEFENCE, post  # noqa: E402
from onlooker import address_parser, become, die_with_the_parent  # noqa: E402
from oversized import bomb  # noqa: E402
from regions import SHM  # noqa: E402

SECONDS = 3.0
COUNTER = struct.Struct("<Q")


def again_and_again(act, server, rounds: mmap.mmap, at: int, log: int) -> None:
    """Never returns. Whatever is no defence of the server's is a mistake of the attack, and is told."""
    os.setpgid(0, 0)
    die_with_the_parent()
    count = 0
    try:
        while True:
            with contextlib.suppress(*DEFENCE):
                act(server)
            count += 1
            COUNTER.pack_into(rounds, COUNTER.size * at, count)
    except BaseException:  # noqa: BLE001 - told by the parent
        os.write(log, traceback.format_exc().encode()[-4000:])
    os._exit(1)


def run(names: list[str], seconds: float, server) -> dict:
    """All of them side by side, and then none."""
    rounds = mmap.mmap(-1, COUNTER.size * len(names))
    log_in, log_out = os.pipe()
    children = []
    for at, name in enumerate(names):
        child = os.fork()
        if child == 0:
            again_and_again(ATTACKS[name], server, rounds, at, log_out)
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        children.append(child)
    time.sleep(seconds)
    for child in children:
        # With the processes that it made.
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(log_out)
    with open(log_in, "rb") as log:
        mistakes = log.read().decode()
    # By contract a region that was registered over HTTP or gRPC stays when its client goes.
    with contextlib.suppress(*DEFENCE):
        post(server, "/v2/systemsharedmemory/unregister", {})
    # So does a model.
    for child, name in zip(children, names):
        if ATTACKS[name].__module__ == attack_configurations.__name__:
            attack_configurations.unload_left(server, child)
    for child in children:
        for left in SHM.glob(f"{OBJECTS}{child}_*"):
            left.unlink()
    found = [COUNTER.unpack_from(rounds, COUNTER.size * at)[0] for at in range(len(names))]
    return {"rounds": found, "mistakes": mistakes}


def main() -> None:
    parser = address_parser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(ATTACKS)}")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    args = parser.parse_args()
    become(args.uid, args.nice)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    # What takes long to make is made once, before the forks.
    for prepare in (texts_of_names, messages_of_names, lambda: bomb("gzip")):
        prepare()
    if args.names:
        print(json.dumps(run(args.names, args.seconds, args)))
        return
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, *names = line.split()
        print(json.dumps(run(names, float(seconds), args)), flush=True)


if __name__ == "__main__":
    main()
