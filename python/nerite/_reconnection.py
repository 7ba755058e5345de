"""When does a call over gRPC wait for a server that was restarted?

After a channel has failed to connect, gRPC fails each call at once until the channel tries again. By default the pauses between tries grow up to two
minutes. Here they are short. A call that was not sent for lack of a connection waits for the next tries, and is sent then.
"""

from __future__ import annotations

import asyncio
import queue
import time
from typing import Any, Optional

import grpc
from tritonclient.grpc import KeepAliveOptions
from tritonclient.utils import InferenceServerException

# The longest time that a call waits for a connection. The channel tries at least twice within it.
RECONNECT_S = 3.0
# The times between two tries to connect: the first one, and the longest one.
BACKOFF_MS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000))
# For about this time after a connection has ended, the channel may still send calls over it, and they fail too. So a call is sent again only after this time.
SETTLE_S = 0.1
# The most bytes of a message, as in tritonclient.
MESSAGE_BYTES_MAX = 2**31 - 1
# The beginning of the library's text for a call that it did not send.
UNSENT = "failed to connect to all addresses"
# Parts of the library's texts for a call whose connection ended before the answer.
CUT_OFF = ("Socket closed", "Stream removed", "Connection reset", "Broken pipe", "GOAWAY")
# Whole texts of the library for such a call. A model's error has more text around one of them.
CUT_OFF_WHOLE = ("Socket closed", "Stream removed", "Stream removed (Socket closed)")


class Unreachable(InferenceServerException, ConnectionError):
    """A call was not sent, because there is no connection. It is an error of tritonclient's, and a ConnectionError as over HTTP and sessions."""

    def __reduce__(self) -> Any:
        return Unreachable, (self.message(), self.status(), self.debug_details())


def with_backoff(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a client of tritonclient whose channel tries soon to connect again. Arguments of the program for its channel stay as they are."""
    given = options.get("channel_args")
    if given is None:
        given = _default_arguments(options.get("keepalive_options") or KeepAliveOptions())
    named = {name for name, _ in given}
    return {**options, "channel_args": [*given, *(one for one in BACKOFF_MS if one[0] not in named)]}


def is_unsent(error: BaseException) -> bool:
    """Whether the library reports that it did not send the call. A model that sends requests to other servers may answer with the same text."""
    return _is_unavailable(error) and str(error.message()).startswith(UNSENT)  # type: ignore[attr-defined]


def was_cut_off(channel: Any, error: BaseException) -> bool:
    """Whether a call lost its connection before its answer, so that it may have run. A model may answer with a similar text, but over a connection."""
    # The text for a call that was not sent ends with the reason, such as "Connection reset by peer".
    if not _is_unavailable(error) or is_unsent(error) or not any(one in str(error) for one in CUT_OFF):
        return False
    # The channel may have connected again since.
    return error.message() in CUT_OFF_WHOLE or _is_unconnected(channel)  # type: ignore[attr-defined]


def settle(left: Optional[float]) -> None:
    """Waits until the channel no longer sends calls over the connection that has ended. ``left``: the seconds that the call still has; None for no limit."""
    time.sleep(SETTLE_S if left is None else min(SETTLE_S, left))


def unreachable(channel: Any, error: BaseException) -> Optional[Unreachable]:
    """The error of a call that was not sent, if the channel still has no connection. None for other errors, such as a model's error with the same text."""
    if not isinstance(error, InferenceServerException) or not is_unsent(error) or not _is_unconnected(channel):
        return None
    return Unreachable(error.message(), error.status(), error.debug_details())


def becomes_ready(channel: Any, seconds: float) -> bool:
    """Waits up to this many seconds until an unconnected channel is connected. False if the channel was connected already,
    because its server may have run the call."""
    states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
    # `unsubscribe` finds the subscription by this object.
    note = states.put
    until = time.monotonic() + seconds
    channel.subscribe(note, try_to_connect=True)
    try:
        # The first state is the one before this call.
        state = states.get(timeout=seconds)
        was_ready = state is grpc.ChannelConnectivity.READY
        while state is not grpc.ChannelConnectivity.READY:
            state = states.get(timeout=max(until - time.monotonic(), 0))
        return not was_ready
    except queue.Empty:
        return False
    finally:
        channel.unsubscribe(note)


async def becomes_ready_async(channel: Any) -> bool:
    """As :func:`becomes_ready`, for asyncio."""
    if channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
        return False
    try:
        await asyncio.wait_for(channel.channel_ready(), RECONNECT_S)
        return True
    except asyncio.TimeoutError:
        return False


def _is_unconnected(channel: Any) -> bool:
    if isinstance(channel, grpc.aio.Channel):
        return channel.get_state() is not grpc.ChannelConnectivity.READY
    states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
    note = states.put
    channel.subscribe(note)
    try:
        return states.get(timeout=RECONNECT_S) is not grpc.ChannelConnectivity.READY
    except queue.Empty:
        return False
    finally:
        channel.unsubscribe(note)


def _is_unavailable(error: BaseException) -> bool:
    return getattr(error, "status", lambda: None)() == "StatusCode.UNAVAILABLE"


def _default_arguments(alive: KeepAliveOptions) -> list[tuple[str, Any]]:
    """The arguments that tritonclient gives to a channel if the caller gives none."""
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", alive.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", alive.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", alive.keepalive_permit_without_calls),
        ("grpc.http2.max_pings_without_data", alive.http2_max_pings_without_data),
    ]
