"""Where is an attack listed, and what may it ignore?"""

import concurrent.futures
import contextlib
import http.client
import time
from collections.abc import Callable

import grpc
from clients import Refused, http_call

# Each does its harm once, or for a second at the most; whoever runs it does so again and again. Its docstring describes it.
ATTACKS: dict[str, Callable] = {}
# What a client hears from a server that defends itself. `Refused` is any answer that says no; the helpers assert what honest clients get.
DEFENCE = (OSError, EOFError, http.client.HTTPException, grpc.RpcError, Refused, AssertionError)
SIDE_BY_SIDE = 8


def attack(act: Callable) -> Callable:
    ATTACKS[act.__name__] = act
    return act


def crowd(count: int, act: Callable[[int], object]) -> None:
    """Does it so many times, some side by side, and ignores how the server defends itself."""

    def one(at: int) -> None:
        with contextlib.suppress(*DEFENCE):
            act(at)

    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(one, range(count)))


def post(server, path: str, body, headers=None):
    return http_call(server.http, "POST", path, body, headers)


def close_after(seconds: float, connections: list) -> None:
    """Keeps connections open for a while, and then closes them."""
    time.sleep(seconds)
    for one in connections:
        one.close()
