"""How do tests start a server with Python models, and read what the models say?"""

import contextlib
import functools
import os
import struct
import subprocess

import python_catalogue
from clients import Reply, text
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
