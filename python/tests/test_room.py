"""Do requests get memory although earlier ones have used up the session's quota?"""

import asyncio

import numpy as np
import pytest
from test_call import connected
from tritonclient.utils import InferenceServerException

QUOTA = 128 << 20
MIB = 1 << 20


@pytest.fixture
def client(launcher):
    with connected(launcher.get("nerite", f"--session-max-bytes={QUOTA}"), "session") as made:
        yield made


@pytest.fixture(params=["threads", "asyncio"])
def run(request):
    """Runs the steps of a coroutine function, whose calls are of either kind."""

    def call(steps):
        async def infer(model, *given):
            return await model.aio(*given) if request.param == "asyncio" else model(*given)

        asyncio.run(steps(infer))

    return call


def filled(megabytes: float, value: float) -> np.ndarray:
    return np.full(int(megabytes * MIB) // 4, value, np.float32)


def session_of(client):
    (connection,) = [one for one in client._all if one.plans]
    return connection


def test_any_number_of_shapes_is_called(client, run):
    identity = client.model("identity_fp32")

    async def steps(infer):
        for number in range(40):
            given = filled(4 + number / 13, number)
            for _ in range(3):
                assert (await infer(identity, given)).OUTPUT0[-1] == number
            session = session_of(client)
            assert session.slot_bytes <= QUOTA // 2 and session.slots == sum(len(plan.slots) for plan in session.plans.values())
        assert len(session.plans) > 3, "some are kept"

    run(steps)


def test_any_number_of_lent_buffers_is_called(client, run):
    identity = client.model("identity_fp32")

    async def steps(infer):
        for number in range(40):
            identity.input("INPUT0", [MIB])[:] = number
            for _ in range(3):
                assert (await infer(identity)).OUTPUT0[-1] == number
            assert client.copied_bytes == 0

    run(steps)


def test_an_output_gets_the_memory_of_idle_plans(client, run):
    identity = client.model("identity_fp32")

    async def steps(infer):
        for number in range(6):
            # Two of these tensors and two of the plan before do not fit together, and what fits is left for the input.
            given = filled(36 + 2 * (number % 2), number)
            for _ in range(3):
                assert (await infer(identity, given)).OUTPUT0[-1] == number

    run(steps)


def test_outputs_that_are_kept_stay_and_their_quota_is_an_error_with_its_cure(client, run):
    identity = client.model("identity_fp32")

    async def steps(infer):
        kept = []
        with pytest.raises(InferenceServerException, match="does not fit: the session has .*return some or raise --session-max-bytes"):
            for number in range(40):
                kept += [await infer(identity, filled(4 + number / 13, number)) for _ in range(2)]
        assert len(kept) > 10
        assert [one.OUTPUT0[-1] for one in kept] == [number // 2 for number in range(len(kept))]
        del kept[:]
        assert (await infer(identity, filled(4, 1))).OUTPUT0[-1] == 1, "the session goes on"

    run(steps)


def test_what_is_used_most_is_what_stays(client, run):
    identity = client.model("identity_fp32")

    async def steps(infer):
        often = filled(4, -1)
        for _ in range(3):
            await infer(identity, often)
        (plan,) = session_of(client).plans.values()
        handles = [slot.handle for slot in plan.slots]
        for number in range(40):
            for _ in range(3):
                await infer(identity, filled(4.1 + number / 13, number))
            assert (await infer(identity, often)).OUTPUT0[-1] == -1
        assert [slot.handle for slot in plan.slots] == handles and not plan.retired

    run(steps)


def test_a_batch_gets_memory_too(client):
    identity = client.model("identity_fp32")
    for number in range(20):
        given = [[filled(4 + number / 13, index)] for index in range(3)]
        for _ in range(3):
            assert [one.OUTPUT0[-1] for one in identity.batch(tuple(map(tuple, given)))] == [0, 1, 2]
