"""How does a model that is a Python class run in a process of the user's own interpreter?

What is here runs there: nerite starts ``python -u -c`` with :mod:`launch` as the text, and sends the other modules over the
socket that the process finds as standard input, so that nothing has to be installed (``docs/python.md`` has the wire).
numpy is all they need.

* :mod:`.utils` is what a model imports as ``triton_python_backend_utils``; it can be imported without a server, too, to test
  a model.
* :mod:`.stub` answers the server's commands; :mod:`.batch` is one execution, :mod:`.answer` the response of one request;
  :mod:`.decoupled` has both for models that answer many times, :mod:`.nested` asks other models.
* :mod:`.channel` and :mod:`.calls` speak with the server in the packets of :mod:`.packets`, :mod:`.memory` maps what it shares.
"""
