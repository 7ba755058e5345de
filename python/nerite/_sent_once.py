"""How is an inference over HTTP sent only once?

geventhttpclient sends a request again if the server closes the connection before it answers, up to once for each connection that it keeps,
and once more. The server may have run the inference by then. Here an inference is sent once, and an error says whether the server may have received it.
"""

from __future__ import annotations

import select
from typing import Any

from geventhttpclient._parser import HTTPParseError
from geventhttpclient.response import HTTPSocketPoolResponse

from nerite._connection import Lost

# The end of the paths of inferences.
INFER = "/infer"
# Bodies up to this size go in one piece with the head of their request.
JOINED_BYTES_MAX = 64 << 10


class SendsOnce:
    """tritonclient's HTTP client, except that inferences are sent once."""

    def __init__(self, stub: Any):
        self._stub = stub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    def post(self, request_uri: str, body: Any = b"", headers: Any = None) -> Any:
        """The response to a POST request. Raises :class:`Lost` if an inference has none."""
        if not request_uri.endswith(INFER):
            return self._stub.post(request_uri=request_uri, body=body, headers=headers)
        stub, pool = self._stub, self._stub._connection_pool
        content = body.encode() if isinstance(body, str) else body
        head = stub._build_request("POST", request_uri, body=content, headers=headers).encode()
        connection = _taken(pool)
        try:
            _send(connection, head, content)
        except BaseException as error:
            pool.release_socket(connection)
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                # A server runs an inference only after it has received the whole body.
                raise Lost(f"the server has gone: {error.strerror or error}", sent=False) from error
            raise
        with _AnswerOrLost():
            # The response gives the connection back to the pool in all cases.
            return _Response(connection, pool, block_size=stub.block_size, method="POST", headers_type=stub.headers_type)


class _Response(HTTPSocketPoolResponse):
    """The response to an inference. If the rest of it cannot be read, the inference may have run all the same."""

    def read(self, length: Any = None) -> Any:
        """As geventhttpclient's."""
        with _AnswerOrLost():
            return super().read(length)


class _AnswerOrLost:
    """Raises :class:`Lost` in place of the error of a connection that ends before the answer to an inference."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, (OSError, HTTPParseError)) and not isinstance(error, (TimeoutError, Lost)):
            raise Lost(f"the server closed the connection before it answered: {error}", sent=True) from error


def _taken(pool: Any) -> Any:
    """A connection of the pool. One that the server closed while it was idle is not used, so no request is lost on it."""
    for _ in range(pool.size + 1):
        connection = pool.get_socket()
        if not _has_ended(connection):
            return connection
        pool.release_socket(connection)
    raise Lost("the server has gone: it closes each connection at once", sent=False)


def _has_ended(connection: Any) -> bool:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _send(connection: Any, head: bytes, body: bytes) -> None:
    if len(body) <= JOINED_BYTES_MAX:
        connection.sendall(head + body)
    else:
        connection.sendall(head)
        connection.sendall(body)
