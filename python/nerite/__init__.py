"""What does a Python program need to talk to a nerite server?

* :mod:`nerite.http` and :mod:`nerite.grpc`: everything ``tritonclient.http`` and ``tritonclient.grpc`` have, and tensors in
  buffers that the server reads and writes in place;
* :mod:`nerite.shm`: named shared memory regions that survive no mistake: they are never unlinked by a process that did not
  make them, and never unmapped under an array;
* :mod:`nerite.testing.shm_util`: four helpers for anybody's tests of shared memory inference;
* :mod:`nerite.model`: what runs a Python model in its own process, and lets it be tested without a server.
"""

from nerite._version import __version__

__all__ = ["__version__"]
