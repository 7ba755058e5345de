"""What does a server answer to a GET over HTTP?

For code that starts a server and waits until it is ready. Answers are small.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import Tuple

ANSWER_S = 1.0
# The header of the PROXY protocol by which a proxy speaks for itself: signature, version 2 with the command LOCAL, no addresses.
PROXY_ITSELF = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"


def get(place: str, path: str, has_tls: bool = False, is_behind_proxy: bool = False, within_s: float = ANSWER_S) -> Tuple[int, str]:
    """The status and the text at ``host:port``. Raises OSError or http.client.HTTPException.

    The certificate of a server with TLS is not checked, because it may be for another name: nothing secret is sent. ``is_behind_proxy``: whether this
    address is one of the server's trusted proxies, so that the connection begins with their header.
    """
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    with socket.create_connection((host, int(port)), timeout=within_s) as plain:
        if is_behind_proxy:
            plain.sendall(PROXY_ITSELF)
        connection = http.client.HTTPConnection(host, int(port), timeout=within_s)
        connection.sock = _secured(plain) if has_tls else plain
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        finally:
            connection.close()


def _secured(plain: socket.socket) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)
