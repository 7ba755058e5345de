"""How are packets exchanged between the process and the server?

A packet is a JSON object or a packed batch, and may have descriptors. If it is too long for the socket, it is in a memory file
(``docs/python-process.md``).
"""

from __future__ import annotations

import array
import os
import select
import socket
import threading
from typing import Any, Optional, Union

from . import packed, packets
from .errors import say

PACKET_BYTES_MAX = 65_536
DESCRIPTORS_MAX = 64
# Longer lines of a log are cut.
LOG_CHARACTERS_MAX = 1 << 20
_ROOM = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)
# Plain numbers, because comparing members of ``socket``'s enumeration takes longer than the system call.
_NO_ROOM = int(socket.MSG_CTRUNC)
_CUT = int(socket.MSG_TRUNC) | _NO_ROOM
_FLAGS = int(socket.MSG_CMSG_CLOEXEC)

# The packets that the process sends.
Packet = Union[packets.Answer, packets.Need, packets.Log, packets.IsCancelled, packets.LetGo]


class Ended(BaseException):
    """The server closed the channel, or has ended. It is not an Exception, so models do not catch it."""


class Channel:
    """One end of a packet socket. One thread at a time may use it."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        memory = memoryview(bytearray(PACKET_BYTES_MAX))
        self._memory = memory
        self._buffers = [memory]
        self._receive = end.recvmsg_into
        self._send = end.send

    def wait(self, seconds: float) -> bool:
        """Whether a message, or the end, comes within that time."""
        events = select.poll()
        events.register(self.socket, select.POLLIN)
        return bool(events.poll(1000 * seconds))

    def receive(self) -> tuple[Any, list[int]]:
        """The next message and its descriptors. Raises :class:`Ended` at the end."""
        try:
            count, beside, flags, _ = self._receive(self._buffers, _ROOM, _FLAGS)
        except ConnectionError:
            raise Ended from None
        descriptors = [one for _, _, some in beside for one in memoryview(some).cast("i")] if beside else []
        if not count or flags & _CUT:
            if flags & _NO_ROOM:
                say("nerite: the model's process has no descriptor left for the memory of a request; does the model close its files? (ulimit -n)")
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
        """Sends one message. Raises :class:`Ended` if the server has closed the channel, and BlockingIOError if the flags forbid to
        wait."""
        self.send_packet(packets.written(message), flags)

    def send_packet(self, packet: bytes, flags: int = 0) -> None:
        """Sends a packet that is encoded already."""
        try:
            if len(packet) <= PACKET_BYTES_MAX:
                self._send(packet, flags)
            else:
                self._send_long(packet, flags)
        except ConnectionError:
            raise Ended from None

    def _send_long(self, text: bytes, flags: int) -> None:
        with open(memory_file("nerite-packet"), "wb", buffering=0) as file:
            os.truncate(file.fileno(), len(text))
            at = 0
            while at < len(text):
                at += os.pwrite(file.fileno(), text[at:] if at else text, at)
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))]
            self.socket.sendmsg([packets.written(packets.long(len(text)))], beside, flags)


def memory_file(name: str) -> int:
    """A file without a name. In a sandbox that limits memory it is in the directory for temporary files, because the limit does not count memory
    files."""
    try:
        return os.memfd_create(name)
    except PermissionError:
        return os.open(os.environ.get("TMPDIR", "/tmp"), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


class SideChannel:
    """The side channel, on which any thread may send at any time."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end)
        self._lock = threading.Lock()
        # The number of the first request of the present batch, or else of the last one. None before the first batch.
        self.run: Optional[int] = None
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def log(self, level: str, text: str, whence: tuple[str, int] = ("", 0)) -> None:
        """Sends a line to the server's log, with its file and line number. If the server does not read fast enough, the line is
        printed, because a model must not wait for its log.
        """
        line: packets.Log = {"log": (level, text[:LOG_CHARACTERS_MAX]), "at": whence}
        if self.run is not None:
            line["of"] = self.run
        try:
            with self._lock:
                self._channel.send(line, socket.MSG_DONTWAIT)
        except (OSError, Ended):
            say(text)

    def let_go(self, segments: list[int]) -> list[int]:
        """Notifies the server that the model does not use these segments any more. Returns those of them that the server had kept. A packet that the
        server has not read yet may make it keep further ones. The server reads that packet before it sends the same memory again.
        """
        with self._lock:
            self._channel.send({"let_go": segments})
            return list(self._channel.receive()[0]["let_go"])

    def call(self, question: Any) -> Any:
        """Sends a call about metrics, and waits for the answer."""
        with self._lock:
            self._channel.send(question)
            return self._channel.receive()[0]

    def notify(self, news: Any) -> None:
        """Sends a message about metrics without answer."""
        try:
            with self._lock:
                self._channel.send(news)
        except (OSError, Ended):
            # This process was forked by the model, or the server has ended.
            pass

    def is_cancelled(self, number: int) -> bool:
        """Whether the client cancelled the request with this number. Waits for the server's answer."""
        try:
            with self._lock:
                self._channel.send({"cancelled": number})
                return bool(self._channel.receive()[0]["cancelled"])
        except Ended:
            return True
        except OSError:
            # This process was forked by the model. It does not have the channel.
            return False
