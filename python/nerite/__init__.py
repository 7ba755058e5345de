"""What does a Python program need to talk to a nerite server?

    import nerite

    client = nerite.connect()                # or nerite.connect("http://host:8000"), of any server of Triton's protocols
    digits = client.model("digits")
    print(digits.help())                     # what it takes and gives
    out = digits(image=array)                # arrays of numpy, PyTorch, JAX, lists, …
    print(out.probabilities.argmax())        # an array over the memory that the model wrote to

* :func:`connect` gives a :class:`Client`, ``client.model(name)`` a :class:`Model`, a call of it a :class:`Response`;
  ``model.submit(…)`` is a future, ``await model.aio(…)`` for asyncio, ``model.batch([…])`` many at once, ``model.stream(…)`` for models
  with several responses, and ``model.input(name)`` lends the buffer that the next call reads;
* :func:`serve` starts a server for this process: ``with nerite.serve("models") as server: server.connect()``; ``python -m nerite`` is its
  program. Both want the distribution ``nerite``, which brings that; ``nerite-client`` is this package alone;
* :mod:`nerite.http` and :mod:`nerite.grpc`: everything ``tritonclient.http`` and ``tritonclient.grpc`` have, and tensors in
  buffers that the server reads and writes in place;
* :mod:`nerite.shm`: named shared memory regions that survive no mistake: they are never unlinked by a process that did not
  make them, and never unmapped under an array;
* :mod:`nerite.testing.shm_util`: four helpers for anybody's tests of shared memory inference;
* :mod:`nerite.model`: what runs a Python model in its own process, and lets it be tested without a server.
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

# Only when asked for: a process of a Python model imports this package without the clients' dependencies.
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
