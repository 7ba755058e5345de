"""How does a run of the sample backend wait for a test?"""

import contextlib
import pathlib

from witness import comes_to


class Gate:
    """A file that the parameter `gate` of a model in the mode `read_long` names. While it exists, a run goes on."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    @contextlib.contextmanager
    def closed(self):
        """A run that begins in the block goes on until the gate is opened, at the latest at the end of the block."""
        self.path.touch()
        try:
            yield self
        finally:
            self.open()

    def has_run(self) -> None:
        """Waits until a run has begun."""
        comes_to(lambda: self.path.stat().st_size > 0, True)

    def open(self) -> None:
        self.path.unlink(missing_ok=True)
