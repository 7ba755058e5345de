#!/usr/bin/env python3
"""How does a client make those wait who touch its memory?

    punching.py HTTP_ADDRESS MODEL GIBIBYTES CONNECTIONS

It punches a hole into all of its object again and again, and meanwhile has a model read and write the same pages on many connections. Who touches
a page that is being punched out waits in the kernel until the whole hole is punched, the longer the more pages there were. For each hole it prints
the seconds that it took and the number of requests that were answered well so far. It runs until it is killed or its standard input ends.
"""

import contextlib
import ctypes
import http.client
import json
import os
import random
import sys
import threading
import time

PAGE = 4096
# Each request is small enough to be run by a thread that serves connections. A string of no bytes is four zeros, as a hole has them.
ELEMENTS = 256
DATATYPES = {"identity_fp32": "FP32", "identity_bytes": "BYTES"}
KEEP_SIZE_AND_PUNCH = 3
NAME = "punched"
LIBC = ctypes.CDLL(None, use_errno=True)
ANSWERED = [0]


def fallocate(descriptor: int, mode: int, byte_size: int) -> None:
    if LIBC.fallocate(descriptor, mode, ctypes.c_long(0), ctypes.c_long(byte_size)):
        raise OSError(ctypes.get_errno(), "fallocate")


def call(connection, path: str, body) -> int:
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    answer.read()
    return answer.status


def window(offset: int) -> dict:
    return {"shared_memory_region": NAME, "shared_memory_byte_size": 4 * ELEMENTS, "shared_memory_offset": offset}


def send_requests(address: str, model: str, byte_size: int) -> None:
    """Has the model copy small pieces of the object to other places of it."""
    chance = random.Random()
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connected(address)) as connection:
            while True:
                source, target = (PAGE * chance.randrange(byte_size // PAGE) for _ in range(2))
                shape = {"shape": [ELEMENTS], "datatype": DATATYPES[model]}
                given = {"name": "INPUT0", "parameters": window(source), **shape}
                wanted = {"name": "OUTPUT0", "parameters": window(target)}
                if call(connection, f"/v2/models/{model}/infer", {"inputs": [given], "outputs": [wanted]}) == 200:
                    ANSWERED[0] += 1


def connected(address: str):
    return http.client.HTTPConnection(address, timeout=60)


def main(address: str, model: str, gibibytes: str, connections: str) -> None:
    byte_size = int(float(gibibytes) * (1 << 30))
    key = f"/nerite_test_{NAME}_{os.getpid()}"
    path = f"/dev/shm{key}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.ftruncate(descriptor, byte_size)
        with contextlib.closing(connected(address)) as connection:
            body = {"key": key, "offset": 0, "byte_size": byte_size}
            assert call(connection, f"/v2/systemsharedmemory/region/{NAME}/register", body) == 200
    finally:
        os.unlink(path)
    for _ in range(int(connections)):
        threading.Thread(target=send_requests, args=(address, model, byte_size), daemon=True).start()
    threading.Thread(target=until_the_end_of_input, daemon=True).start()
    while True:
        fallocate(descriptor, 0, byte_size)
        began = time.monotonic()
        fallocate(descriptor, KEEP_SIZE_AND_PUNCH, byte_size)
        print(f"{time.monotonic() - began:.3f} {ANSWERED[0]}", flush=True)


def until_the_end_of_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
