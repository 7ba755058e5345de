"""How are calls of prepared inferences encoded, and the answers that are as expected?"""

from __future__ import annotations

from typing import Sequence

from nerite import _protobuf

# Fields of session.proto that are used here.
CLIENT_ID, CLIENT_CALL = 1, 14
SERVER_ID, SERVER_CALLED, SERVER_ANSWERS = 1, 13, 14
# The most calls of one packet.
CALLS_MAX = 32
# The id of the first call in a packet. Further calls in the packet have the ids that follow.
CALL_ID = 1
CALLED = _protobuf.encode([(SERVER_ID, CALL_ID), (SERVER_CALLED, b"")])
# The beginnings of a packet with a call, and of the fields of the call: its handle, and the handles of further calls.
_CALL_BEGINS = _protobuf.encode([(CLIENT_ID, CALL_ID)]) + _protobuf.varint(CLIENT_CALL << 3 | _protobuf.BYTES)
_CALL_HANDLE, _CALL_FURTHER = _protobuf.varint(1 << 3 | _protobuf.VARINT), _protobuf.varint(2 << 3 | _protobuf.BYTES)


def together(handles: Sequence[bytes]) -> bytes:
    """The packet that calls all these handles, which are encoded as varints."""
    call = _CALL_HANDLE + handles[0]
    further = b"".join(handles[1:])
    if further:
        call += _CALL_FURTHER + _protobuf.varint(len(further)) + further
    return _CALL_BEGINS + _protobuf.varint(len(call)) + call


def _called_together(count: int) -> bytes:
    """The concatenated answers to this many calls of one packet, if all outputs are as expected."""
    called = [_protobuf.encode([(SERVER_ID, CALL_ID + index), (SERVER_CALLED, b"")]) for index in range(count)]
    if count <= 1:
        return b"".join(called)
    return _protobuf.encode([(SERVER_ANSWERS, _protobuf.encode([(1, one) for one in called]))])


#: By the number of calls in a packet: its answer, if all outputs are as expected.
CALLED_TOGETHER = [_called_together(count) for count in range(CALLS_MAX + 1)]
