"""How does any thread of a model ask the server for something, whatever the main thread does?

On a channel of its own. A question has a number, which its answer repeats; whoever waits for an answer reads those of others as well, so
there is no thread that reads.
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
from .memory import Memory, Unmapped


class Calls:
    """The process's end of the channel for calls."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end)
        # That of the conversation, once there is one.
        self._memory = Memory()
        self._numbers = itertools.count(1)
        self._pid = os.getpid()
        self._news = threading.Condition(threading.Lock())
        self._is_read = False
        # What was asked and is still wanted: the number, and the answers that have come and were not fetched.
        self._asked: dict[int, collections.deque[Any]] = {}

    def share(self, memory: Memory) -> None:
        """What answers introduce belongs to this memory, which may name it before anybody has read the answer."""
        self._memory = memory
        memory.read_more = self.read_waiting

    def begin(self, question: Any) -> int:
        """Asks, and returns the number under which the answer is to be waited for."""
        if os.getpid() != self._pid:
            raise TritonModelException("A process that the model forked cannot speak to the server.")
        number = next(self._numbers)
        with self._news:
            self._asked[number] = collections.deque()
        self._channel.send({"call": number, **question})
        return number

    def ask(self, question: Any) -> Any:
        """Asks, and waits for the answer."""
        return self.wait(self.begin(question))

    def tell(self, news: Any) -> None:
        """Says something that is not answered."""
        if os.getpid() == self._pid:
            self._channel.send(news)

    def wait(self, number: int) -> Any:
        """The answer to the question of that number."""
        answer = self.next(number)
        with self._news:
            self._asked.pop(number, None)
        return answer

    def next(self, number: int) -> Any:
        """The next answer to a question that has several."""
        with self._news:
            answers = self._asked[number]
            while not answers:
                if self._is_read:
                    self._news.wait()
                else:
                    self._read()
            return answers.popleft()

    def drop(self, number: int) -> None:
        """Nobody waits for that answer any more."""
        with self._news:
            self._asked.pop(number, None)
        # What nobody waits for must not pile up.
        while self.read_waiting(0.0):
            pass

    def read_waiting(self, seconds: float) -> bool:
        """Reads what comes within that time, unless another thread does. Whether there was anything."""
        if self._is_read or not self._channel.wait(seconds):
            return False
        with self._news:
            if self._is_read or not self._channel.wait(0.0):
                return False
            self._read()
        return True

    def _read(self) -> None:
        """Reads one answer; the lock is held before and after, not meanwhile."""
        self._is_read = True
        self._news.release()
        answer = None
        try:
            answer = self._receive()
        finally:
            self._news.acquire()
            self._is_read = False
            self._news.notify_all()
        # Who asked may not want to know any more.
        answers = self._asked.get(answer["call"])
        if answers is not None:
            answers.append(answer)

    def _receive(self) -> Any:
        answer, descriptors = self._channel.receive()
        if answer.get("map"):
            try:
                self._memory.map(answer["map"], descriptors)
            except Unmapped as failed:
                unmapped, self._memory.unmapped = self._memory.unmapped, []
                self.tell({"unmapped": unmapped})
                return {"call": answer["call"], "error": str(failed)}
        return answer


