"""How do threads of a model call the server, at any time?

Calls have their own channel. A call has a number, which its answer repeats. A thread that waits for an answer also reads the answers for
other threads, so there is no reader thread.
"""

from __future__ import annotations

import collections
import itertools
import os
import socket
import threading
from typing import Any

from .channel import Channel
from .errors import TritonModelException
from .memory import Memory
from .packets import TENSOR_SEGMENT


class Calls:
    """The process's end of the channel for calls."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end)
        # Replaced by :meth:`share`.
        self._memory = Memory()
        self._numbers = itertools.count(1)
        self._pid = os.getpid()
        self._news = threading.Condition(threading.Lock())
        self._is_read = False
        # For each pending call, by its number: the answers that were received and not fetched yet.
        self._pending: dict[int, collections.deque[Any]] = {}

    def share(self, memory: Memory) -> None:
        """Sets the memory for segments that answers introduce. It reads answers itself if it needs a segment whose answer no thread has read yet."""
        self._memory = memory
        memory.read_more = self.read_waiting

    def begin(self, question: Any) -> int:
        """Sends a call, and returns the number of its answer."""
        if os.getpid() != self._pid:
            raise TritonModelException("A process that the model forked cannot communicate with the server.")
        number = next(self._numbers)
        with self._news:
            self._pending[number] = collections.deque()
        self._channel.send({"call": number, **question})
        return number

    def call(self, question: Any) -> Any:
        """Sends a call, and waits for the answer."""
        return self.wait(self.begin(question))

    def notify(self, news: Any) -> None:
        """Sends a message without answer."""
        if os.getpid() == self._pid:
            self._channel.send(news)

    def wait(self, number: int) -> Any:
        """Waits for the answer with that number."""
        answer = self.next(number)
        with self._news:
            self._pending.pop(number, None)
        return answer

    def next(self, number: int) -> Any:
        """Waits for the next answer of a call with several answers."""
        with self._news:
            answers = self._pending[number]
            while not answers:
                if self._is_read:
                    self._news.wait()
                else:
                    self._read()
            return answers.popleft()

    def is_pending(self, number: int) -> bool:
        """Whether a thread waits for an answer with that number, or has not read all of them."""
        with self._news:
            return number in self._pending

    def drop(self, number: int) -> None:
        """Notes that the answer is not needed any more."""
        with self._news:
            for answer in self._pending.pop(number, ()):
                self.discard(answer)
        # Answers that no thread waits for must not fill the socket.
        while self.read_waiting(0.0):
            pass

    def read_waiting(self, seconds: float) -> bool:
        """Reads one answer, if one arrives within that time and no other thread reads. Returns whether it has read one."""
        if self._is_read or not self._channel.wait(seconds):
            return False
        with self._news:
            if self._is_read or not self._channel.wait(0.0):
                return False
            self._read()
        return True

    def _read(self) -> None:
        """Reads one answer. The lock is held by the caller, and is released meanwhile."""
        self._is_read = True
        self._news.release()
        answer = None
        try:
            answer = self._receive()
        finally:
            self._news.acquire()
            self._is_read = False
            self._news.notify_all()
        # The caller may not need the answer any more.
        answers = self._pending.get(answer["call"])
        if answers is not None:
            answers.append(answer)
        else:
            self.discard(answer)

    def discard(self, answer: Any) -> None:
        """Notes that the model will not read this answer. The server keeps the memory of its outputs until it is notified."""
        response = answer.get("response") or {}
        for output in response.get("outputs", ()):
            if output[TENSOR_SEGMENT] is not None:
                self._memory.hold(output[TENSOR_SEGMENT])

    def _receive(self) -> Any:
        answer, descriptors = self._channel.receive()
        if answer.get("map"):
            self._memory.map(answer["map"], descriptors)
            found = self._memory.unmapped
            unmapped = {segment: found.pop(segment) for segment, *_ in answer["map"] if segment in found}
            if unmapped:
                self.notify({"unmapped": list(unmapped)})
                return {"call": answer["call"], "error": "; ".join(unmapped.values())}
        return answer


