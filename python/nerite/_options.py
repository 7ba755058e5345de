"""Which options of the clients for HTTP and gRPC may a program give to ``connect``?

An option that would be ignored is refused, because the program would believe that the option works.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Mapping

# How tensors may travel over a session: in its leases.
OVER_SESSION = ("auto", "lease")
# In a fleet: over a session if a replica is on this host, or always through the proxy.
IN_FLEET = ("auto", "inline")


def check(scheme: str, options: Mapping[str, Any]) -> None:
    """Refuses options that no connection with this scheme has. An empty scheme means a session or HTTP."""
    if scheme == "unix":
        _check_for_session(options)
        return
    if scheme == "fleet" and (buffers := options.get("buffers", "auto")) not in IN_FLEET:
        raise ValueError(f"buffers={buffers!r} does not go with a fleet, whose proxy sends each request to another server; give one of {', '.join(IN_FLEET)}")
    # The module is imported only if there are names to check.
    if unknown := set(options) - {"buffers"}:
        protocol = scheme if scheme == "grpc" else "http"
        client = importlib.import_module(f"nerite.{protocol}").InferenceServerClient
        names = [name for name in inspect.signature(client.__init__).parameters if name not in ("self", "url")]
        if unknown := unknown - set(names):
            what = {"": "without an address", "http": "to a server over HTTP", "grpc": "to a server over gRPC", "fleet": "to a fleet"}[scheme]
            raise TypeError(f"connect() {what} has no option '{min(unknown)}', it takes {', '.join(names)}")


def _check_for_session(options: Mapping[str, Any]) -> None:
    if others := set(options) - {"buffers"}:
        raise TypeError(f"connect() to a session socket has no option '{min(others)}'; options of clients are for http:// and grpc:// addresses")
    if (buffers := options.get("buffers", "auto")) not in OVER_SESSION:
        raise ValueError(f"buffers={buffers!r} does not go with a session socket, whose tensors lie in leases; name an http:// or grpc:// address")


def has_session(options: Mapping[str, Any]) -> bool:
    """Whether a session can be used with these options."""
    return options.get("buffers", "auto") in OVER_SESSION
