"""How do packets travel between the child and the server?

One packet is one JSON object, or a packed batch, with descriptors beside it; what is too long for a packet lies in a memory file
(``docs/python.md``).
"""

from __future__ import annotations

import array
import os
import select
import socket
import threading
from typing import Any, Union

from . import packed, packets
from .errors import say

PACKET_BYTES_MAX = 65_536
DESCRIPTORS_MAX = 64
# Longer lines of a log are cut.
LOG_CHARACTERS_MAX = 1 << 20
_ROOM = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)
_CUT = socket.MSG_TRUNC | socket.MSG_CTRUNC
_FLAGS = socket.MSG_CMSG_CLOEXEC

# What the process sends.
Packet = Union[packets.Answer, packets.Need, packets.Log, packets.IsCancelled, packets.LetGo]


class Ended(BaseException):
    """The server closed the channel, or is gone. Not an Exception, so that no model catches it."""


class Channel:
    """One end of a packet socket, for one thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        memory = memoryview(bytearray(PACKET_BYTES_MAX))
        self._memory = memory
        self._buffers = [memory]
        self._receive = end.recvmsg_into
        self._send = end.send

    def wait(self, seconds: float) -> bool:
        """Whether there is a message, or the end, within that time."""
        events = select.poll()
        events.register(self.socket, select.POLLIN)
        return bool(events.poll(1000 * seconds))

    def receive(self) -> tuple[Any, list[int]]:
        """The next message and the descriptors beside it; raises :class:`Ended` at the end."""
        try:
            count, beside, flags, _ = self._receive(self._buffers, _ROOM, _FLAGS)
        except ConnectionError:
            raise Ended from None
        descriptors = [one for _, _, some in beside for one in memoryview(some).cast("i")] if beside else []
        if flags & socket.MSG_CTRUNC:
            say("nerite: the model's process has no descriptor left for the memory of a request; does the model close its files? (ulimit -n)")
        if not count or flags & _CUT:
            raise Ended
        packet = self._memory[:count]
        if packet[0] == packed.EXECUTE:
            return packed.read(packet), descriptors
        message = packets.read(packet)
        byte_size = packets.long_bytes(message)
        if byte_size is None:
            return message, descriptors
        with open(descriptors.pop(0), "rb") as file:
            text = os.pread(file.fileno(), byte_size, 0)
        return (packed.read(text) if text[0] == packed.EXECUTE else packets.read(text)), descriptors

    def send(self, message: Packet, flags: int = 0) -> None:
        """Sends one message; raises :class:`Ended` when nobody is there, BlockingIOError if asked not to wait."""
        self.send_packet(packets.written(message), flags)

    def send_packet(self, packet: bytes, flags: int = 0) -> None:
        """The same of a packet that is written already."""
        try:
            if len(packet) <= PACKET_BYTES_MAX:
                self._send(packet, flags)
            else:
                self._send_long(packet, flags)
        except ConnectionError:
            raise Ended from None

    def _send_long(self, text: bytes, flags: int) -> None:
        with open(os.memfd_create("nerite-packet"), "wb", buffering=0) as file:
            os.truncate(file.fileno(), len(text))
            at = 0
            while at < len(text):
                at += os.pwrite(file.fileno(), text[at:] if at else text, at)
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))]
            self.socket.sendmsg([packets.written(packets.long(len(text)))], beside, flags)


class Side:
    """The channel on which any thread may speak at any time."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end)
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def log(self, level: str, text: str, whence: tuple[str, int] = ("", 0)) -> None:
        """Hands a line to the server's log, and whose file and line it is; if the server is behind, it is printed, for no
        model waits for its log.
        """
        line: packets.Log = {"log": (level, text[:LOG_CHARACTERS_MAX]), "at": whence}
        try:
            with self._lock:
                self._channel.send(line, socket.MSG_DONTWAIT)
        except (OSError, Ended):
            say(text)

    def let_go(self, segments: list[int]) -> list[int]:
        """Gives memory back that the server keeps for the model; returns what it had of it. A packet that is on its way may name
        more: the server has read that before it hears of the same memory again.
        """
        with self._lock:
            self._channel.send({"let_go": segments})
            return list(self._channel.receive()[0]["let_go"])

    def ask(self, question: Any) -> Any:
        """Asks something about metrics, and waits for the answer."""
        with self._lock:
            self._channel.send(question)
            return self._channel.receive()[0]

    def tell(self, news: Any) -> None:
        """Says something about metrics that is not answered."""
        try:
            with self._lock:
                self._channel.send(news)
        except (OSError, Ended):
            # A process that the model forked, or one whose server is gone.
            pass

    def is_cancelled(self, number: int) -> bool:
        """Asks whether the client gave up the request of this number."""
        try:
            with self._lock:
                self._channel.send({"cancelled": number})
                return bool(self._channel.receive()[0]["cancelled"])
        except Ended:
            return True
        except OSError:
            # A process that the model forked: it does not have the channel, and cannot know.
            return False
