"""How does a model that is a Python class run in a process of the user's own interpreter?

These modules run in that process. nerite starts ``python -u -c`` with :mod:`launch` as the program, and sends the other modules over the
socket that is the process's standard input, so nothing has to be installed (``docs/python-process.md`` describes the packets). They need numpy
only.

* :mod:`.utils` is the module that a model imports as ``triton_python_backend_utils``. It can be imported without a server too, to test a
  model.
* :mod:`.stub` answers the server's commands. :mod:`.batch` runs one batch, :mod:`.answer` makes the response of one request.
  :mod:`.decoupled` does both for models with several responses, :mod:`.nested` sends requests to other models.
* :mod:`.channel` and :mod:`.calls` exchange the packets of :mod:`.packets` with the server, :mod:`.memory` maps the memory that it shares.
"""
