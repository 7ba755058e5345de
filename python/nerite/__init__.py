"""What does a Python program need to talk to a nerite server?

    import nerite

    client = nerite.connect()                # or nerite.connect("host:8000"), of any server of Triton's protocols
    digits = client.model("digits")
    print(digits.help())                     # what it takes and gives
    out = digits(image=array)                # arrays of numpy, PyTorch, JAX, lists, …
    print(out.probabilities.argmax())        # an array over the memory that the model wrote to

* :func:`connect` returns a :class:`Client`, ``client.model(name)`` a :class:`Model`, and a call of the model a :class:`Response`.
  ``model.submit(…)`` returns a future, ``await model.aio(…)`` is for asyncio, ``model.batch([…])`` for many requests at once,
  ``model.stream(…)`` for models with several responses, and ``model.input(name)`` returns the buffer that the next call reads;
* :func:`serve` starts a server for this process: ``with nerite.serve("models") as server: server.connect()``; ``python -m nerite`` runs
  the server. Both need the distribution ``nerite``, which contains the program. The distribution ``nerite-client`` is this
  package alone;
* :mod:`nerite.http` and :mod:`nerite.grpc`: the interfaces of ``tritonclient.http`` and ``tritonclient.grpc``, and tensors in buffers that
  the server reads and writes in place;
* :mod:`nerite.shm`: named shared memory regions. A region is only unlinked by the process that created it, and never unmapped while an
  array uses it;
* :mod:`nerite.testing.shm_util`: four helpers for tests of inference with shared memory, with any Triton-compatible server;
* :mod:`nerite.model`: runs a Python model in its own process. Its ``utils`` module also allows tests of a model without a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nerite._version import __version__

if TYPE_CHECKING:
    from nerite._binary import ServerMissing, examples
    from nerite._client import Client, connect
    from nerite._model import Model
    from nerite._response import Response
    from nerite._serve import Server, ServerError, serve

__all__ = ["Client", "Model", "Response", "Server", "ServerError", "ServerMissing", "__version__", "connect", "examples", "serve"]

# Imported at first use, because the process of a Python model imports this package without the clients' dependencies.
_PLACES = {
    "connect": "_client",
    "Client": "_client",
    "Model": "_model",
    "Response": "_response",
    "serve": "_serve",
    "Server": "_serve",
    "ServerError": "_serve",
    "ServerMissing": "_binary",
    "examples": "_binary",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'nerite' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"nerite.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
