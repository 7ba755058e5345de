"""To which span of the program does a request belong?

As in W3C Trace Context (https://www.w3.org/TR/trace-context/). The server reads the texts, and ignores malformed ones. Here they are only checked for what
cannot be sent.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from nerite import _protobuf

# Fields of session.proto.
TRACE_PARENT, TRACE_STATE = 1, 2
# A longer text is not sent. The server passes at most this many bytes of a `tracestate` on.
_SENDABLE = re.compile(r"[ -~]{1,512}")


class Trace(NamedTuple):
    """The headers of one request. ``state`` is empty if there is none."""

    parent: str
    state: str

    def headers(self) -> dict[str, str]:
        """For HTTP and gRPC."""
        return {"traceparent": self.parent, **({"tracestate": self.state} if self.state else {})}

    def message(self) -> bytes:
        """The field of a session's packet."""
        return _protobuf.encode([(TRACE_PARENT, self.parent), *([(TRACE_STATE, self.state)] if self.state else [])])


def checked(parent: Optional[str], state: Optional[str]) -> Optional[Trace]:
    """These headers, without a malformed ``state``. None if there is no ``parent``, or if it is malformed."""
    for name, text in (("trace_parent", parent), ("trace_state", state)):
        if not (text is None or isinstance(text, str)):
            raise TypeError(f"{name} is a str, got {text!r}")
    if parent is None or not _SENDABLE.fullmatch(parent):
        return None
    return Trace(parent, state if state and _SENDABLE.fullmatch(state) else "")
