"""How do bytes go from one client's memory to another by way of a model, and what does a client hear whose region was lost?"""

import contextlib

from clients import Given, Refused, RequestedOutput, check_refusal
from regions import Region
from witness import any_client, lent

SIZE = 1 << 20


def through(client, source, target, byte_size: int = SIZE, model: str = "identity_fp32", names=("INPUT0", "OUTPUT0")) -> None:
    """`byte_size` bytes of one region into another, by way of a model."""
    given = Given(names[0], "FP32", [byte_size // 4], region=(source.name, byte_size, 0))
    client.infer(model, [given], [RequestedOutput(names[1], (target.name, byte_size, 0))])


def lost(made: Region, says: str) -> str:
    return (
        f"shared memory region '{made.name}' can no longer be used: its object '{made.key}' was {made.byte_size} bytes "
        f"when registered and {says}"
    )


def check_lost(failure, made: Region, says: str) -> None:
    assert isinstance(failure, Refused), failure
    check_refusal(failure.status, failure.text, "INVALID_ARG", lost(made, says))
    assert "register it again" in failure.text


@contextlib.contextmanager
def memory_of(kind: str, client, server):
    """Makes memory of so many bytes that the client's requests can name: a POSIX region, or a lease of a session."""
    with contextlib.ExitStack() as held:
        if kind == "region":
            yield lambda byte_size: held.enter_context(lent(client, byte_size))
        else:
            session = client if client.protocol == "session" else held.enter_context(any_client("session", server))
            yield session.borrow
