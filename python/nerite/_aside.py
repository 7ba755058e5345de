"""How do the asyncio clients have managed buffers without stopping the event loop?

A session socket is asked in the plain way, which waits. Most of what a request needs is at hand: a free block, a lease that is
mapped already. Only what is not is fetched in a thread.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Callable, Optional, Sequence, TypeVar

from nerite._buffers import wants_place
from nerite._managed import Flight, ManagedClient
from nerite._session import server_id_among

# A call about buffers that is not awaited may hold up the loop so long, if the server is stuck.
LOOP_ANSWER_S = 1.0
# How long it may take at the beginning to learn who the server is.
WHO_S = 2.0

Result = TypeVar("Result")


async def aside(step: Callable[[], Result], is_quick: bool) -> Result:
    """Carries out a step here if it waits for nobody, else in a thread."""
    return step() if is_quick else await asyncio.to_thread(step)


class AsideClient(ManagedClient):
    """The part of an asyncio client that is the same for both protocols."""

    _server_id: Optional[str] = None

    async def _find_session(self) -> None:
        """Learns who the server is and opens the session, so that later calls need not; a server may well come up later."""
        if not self._may_have_session:
            return
        try:
            self._server_id = server_id_among(await asyncio.wait_for(self._await_extensions(), WHO_S))
        except Exception:  # noqa: BLE001 - restricted, or nobody there yet
            return
        await asyncio.to_thread(self._lender().placing_session)

    async def _await_extensions(self) -> Sequence[str]:
        """The extensions in the server's metadata."""
        raise NotImplementedError

    def _ask_server_id(self) -> Optional[str]:
        # No request can be sent from here; without an answer from before other signs decide.
        return self._server_id

    def _at_hand(self, outputs: Optional[Sequence[Any]]) -> bool:
        sizes = [one.byte_size() for one in outputs or () if wants_place(one)]
        return not sizes or self._lender().is_at_hand(sizes)

    async def _flight_aside(self, inputs: Any, outputs: Optional[Sequence[Any]]) -> Flight:
        return await aside(partial(self._flight, inputs, outputs), self._at_hand(outputs))

    async def _land_aside(self, kind: Any, result: Any, flight: Flight) -> Any:
        made = kind.unsettled(result)
        try:
            made._placed = await aside(partial(flight.settle, made), not flight.is_missing(made))
        except BaseException:
            flight.give_up()
            raise
        return made
