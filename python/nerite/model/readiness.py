"""How does a model report its own readiness?

A thread waits in a call until the server checks the readiness. Its next call has the answer (``docs/python-process.md``).
"""

from __future__ import annotations

import threading
from typing import Any, Optional, Union

from . import batch
from .calls import Calls
from .channel import Ended
from .errors import CALLERS, error_text

WRONG = "is_ready() must return a boolean value"


class ReadinessAnswers:
    """Calls the model at each check of the server."""

    def __init__(self, model: Any, calls: Calls) -> None:
        self._model: Optional[Any] = model
        self._calls = calls
        threading.Thread(target=self._serve, name=batch.READINESS_THREAD, daemon=True).start()

    def end(self) -> None:
        """Stops the checks, because the model is finalized."""
        self._model = None

    def _serve(self) -> None:
        said: Union[None, bool, str] = None
        try:
            while True:
                self._calls.call({"readiness": said})
                said = self._check()
        except (Ended, OSError):
            # The server has ended, and this process will end too.
            pass

    def _check(self) -> Union[bool, str]:
        model = self._model
        try:
            said = batch.settled(batch.call(model.is_ready)) if model is not None else False
        except Ended:
            raise
        except BaseException as error:  # noqa: BLE001 - a model may raise anything, SystemExit as well
            return error_text(error)
        return said if isinstance(said, bool) else WRONG


CALLERS.add(ReadinessAnswers._serve.__code__)
CALLERS.add(ReadinessAnswers._check.__code__)
