"""Is the model ready that says so itself?

A thread waits in a call until the server wants to know; its next call carries the answer (``docs/python.md``).
"""

from __future__ import annotations

import threading
from typing import Any, Optional, Union

from . import batch
from .calls import Calls
from .channel import Ended
from .errors import CALLERS, told

WRONG = "is_ready() must return a boolean value"


class ReadinessAnswers:
    """Asks the model whenever the server asks."""

    def __init__(self, model: Any, calls: Calls) -> None:
        self._model: Optional[Any] = model
        self._calls = calls
        threading.Thread(target=self._serve, name=batch.READINESS_THREAD, daemon=True).start()

    def end(self) -> None:
        """The model is finalized: it is not asked any more."""
        self._model = None

    def _serve(self) -> None:
        said: Union[None, bool, str] = None
        try:
            while True:
                self._calls.ask({"readiness": said})
                said = self._asked()
        except (Ended, OSError):
            # The server is gone, and so is this process in a moment.
            pass

    def _asked(self) -> Union[bool, str]:
        model = self._model
        try:
            said = batch.settled(batch.call(model.is_ready)) if model is not None else False
        except Ended:
            raise
        except BaseException as error:  # noqa: BLE001 - a model may raise anything, SystemExit as well
            return told(error)
        return said if isinstance(said, bool) else WRONG


CALLERS.add(ReadinessAnswers._serve.__code__)
CALLERS.add(ReadinessAnswers._asked.__code__)
