"""How do tests start a server with Python models, and read what the models say?"""

import contextlib
import functools
import os
import pathlib
import struct
import subprocess

import python_catalogue
from clients import Reply, text
from footprint import wait_until
from servers import nerite_binary


# Many interpreters that start at once may take long where the machine is busy.
PATIENT = "--backend-config=python,stub-timeout-seconds=300"
# A sandbox of the strictest kind.
SANDBOX = (
    "--backend-config=python,sandbox=on",
    f"--backend-config=python,sandbox-memory={1 << 30}",
    "--backend-config=python,sandbox-file-size=1000000",
)


@functools.cache
def kernel_refuses() -> str:
    """Why the kernel confines no process; nothing if it does. With NERITE_TEST_SANDBOX=required, that it does not is a failure."""
    why = subprocess.run([nerite_binary(), "confine", "--"], capture_output=True, text=True).stderr.strip()
    assert not why or os.environ.get("NERITE_TEST_SANDBOX") != "required", why
    return why


@contextlib.contextmanager
def serving(launcher, name: str, *models: str, flags=(), with_too=()):
    """A server with these Python models, and others of the catalogue."""
    repository = launcher.copy_of(name, *with_too)
    for one in models:
        python_catalogue.put(repository, python_catalogue.named(one))
    with launcher.running(name, PATIENT, *flags, repository=repository) as found:
        yield found


def strings(raw: bytes) -> list[str]:
    """The elements of a BYTES tensor."""
    found = []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        found.append(raw[4 : 4 + length].decode())
        raw = raw[4 + length :]
    return found


def said(reply: Reply, output: str = "SAID") -> str:
    (only,) = strings(reply.outputs[output].raw)
    return only


def do(client, model: str, *words: str, **more) -> Reply:
    """Asks one of the models that do what they are told."""
    return client.infer(model, [text("ACTION", [one.encode() for one in words])], **more)


# What is waited for does not end sooner or later than the test wants, however busy the machine is.
GATES = """\
import pathlib
import time


def pass_gate(name, is_over=lambda: False):
    gates, deadline = pathlib.Path({folder!r}), time.monotonic() + 60
    (gates / f"{{name}}.here").touch()
    while not (gates / f"{{name}}.open").exists() and not is_over() and time.monotonic() < deadline:
        time.sleep(0.005)


"""


class Gates:
    """Places where Python models say that they are there and wait until a test lets them go on. Their code begins with `code`."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.code = GATES.format(folder=str(folder))
        folder.mkdir()

    def wait_for(self, name) -> None:
        """Waits until a model is there."""
        wait_until(lambda: self.has_come(name))

    def has_come(self, name) -> bool:
        return (self.folder / f"{name}.here").exists()

    def open(self, name) -> None:
        (self.folder / f"{name}.open").touch()

    def close(self, name) -> None:
        for state in ("here", "open"):
            (self.folder / f"{name}.{state}").unlink(missing_ok=True)
