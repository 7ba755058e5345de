"""How do the asyncio clients use managed buffers without blocking the event loop?

Requests over a session socket block. Most inferences need no such request, because a free block or a mapped lease is available. The others
send it in a thread.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import Any, Callable, Optional, Sequence, TypeVar

from nerite._buffers import wants_place
from nerite._managed import AGAIN_S, ManagedClient, PendingRequest
from nerite._session import server_id_among

# The longest time that a call about buffers without ``await`` may block the loop, if the server does not answer.
LOOP_ANSWER_S = 1.0
# The longest wait for the server's identity at the start.
WHO_S = 2.0

Result = TypeVar("Result")


async def aside(step: Callable[[], Result], is_quick: bool) -> Result:
    """Runs a step on the event loop if it does not block, else in a thread."""
    return step() if is_quick else await asyncio.to_thread(step)


class AsideClient(ManagedClient):
    """The part of an asyncio client that is the same for both protocols."""

    _server_id: Optional[str] = None
    _find_again_at = 0.0

    async def _find_session(self) -> None:
        """Requests the server's identity and opens the session, so that later calls need not. Does nothing if no server answers yet."""
        if not any(map(os.path.exists, self._session_paths)):
            return
        try:
            self._server_id = server_id_among(await asyncio.wait_for(self._await_extensions(), WHO_S))
        except Exception:  # noqa: BLE001 - restricted, or no server answers yet
            return
        await asyncio.to_thread(self._lender().placing_session)

    async def _find_session_again(self) -> None:
        """Calls :meth:`_find_session` again if the session has ended, because the server may have been restarted."""
        if self._lender().has_lost() and time.monotonic() >= self._find_again_at:
            self._find_again_at = time.monotonic() + AGAIN_S
            await self._find_session()

    async def _await_extensions(self) -> Sequence[str]:
        """The extensions in the server's metadata."""
        raise NotImplementedError

    def _fetch_server_id(self) -> Optional[str]:
        # No request can be sent from here. An earlier answer is used for one session only, because the next session may be with another server.
        # Without an answer, `is_server_of` looks for the server's process in /proc.
        server_id, self._server_id = self._server_id, None
        return server_id

    def _at_hand(self, outputs: Optional[Sequence[Any]]) -> bool:
        sizes = [one.byte_size() for one in outputs or () if wants_place(one)]
        return not sizes or self._lender().is_at_hand(sizes)

    async def _pending_aside(self, inputs: Any, outputs: Optional[Sequence[Any]]) -> PendingRequest:
        await self._find_session_again()
        return await aside(partial(self._pending_request, inputs, outputs), self._at_hand(outputs))

    async def _settle_aside(self, kind: Any, result: Any, pending: PendingRequest) -> Any:
        made = kind.unsettled(result)
        try:
            made._placed = await aside(partial(pending.settle, made), not pending.is_missing(made))
        except BaseException:
            pending.give_up()
            raise
        return made
