"""What do clients see of models whose processes are killed under load?"""

import contextlib
import os
import random
import signal
import threading
import time

from clients import Given, Refused, RequestedOutput
from passages import SIZE
from pythons import state_of
from witness import SETTLE_S, any_client, comes_to, lent

SEED = int(os.environ.get("NERITE_SEED", "1"))


class RequestThread(threading.Thread):
    """Asks models whose processes are killed, inline and through memory; errors must be those of a dead process."""

    models: tuple[str, ...]
    names = ("INPUT0", "OUTPUT0")
    size = SIZE
    inline_bytes_max = 32 << 10  # which a session's packet holds
    ends: tuple[str, ...] = ("was ended by signal 9 (SIGKILL)",)

    def __init__(self, protocol: str, server, seed: int):
        super().__init__()
        self.protocol, self.server, self.chance = protocol, server, random.Random(seed)
        self.ended, self.failure, self.answers, self.errors = threading.Event(), None, 0, 0

    def run(self) -> None:
        try:
            with any_client(self.protocol, self.server) as client, lent(client, 2 * self.size) as made:
                while not self.ended.is_set():
                    self.one(client, made)
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            self.failure = failure

    def one(self, client, made) -> None:
        size = 4 * self.chance.randrange(1, self.size // 4)
        sent, model, (input_name, output_name) = self.chance.randbytes(size), self.chance.choice(self.models), self.names
        try:
            if size < self.inline_bytes_max:
                assert client.infer(model, [Given(input_name, "FP32", [size // 4], sent)]).outputs[output_name].raw == sent
            else:
                made.write(sent)
                source = Given(input_name, "FP32", [size // 4], region=(made.name, size, 0))
                client.infer(model, [source], [RequestedOutput(output_name, (made.name, size, self.size))])
                assert made.read(size, self.size) == sent
            self.answers += 1
        except Refused as refusal:
            assert any(end in refusal.text for end in self.ends), refusal
            self.errors += 1


def kill_under_load(threads, witnesses, kills: int, alive, longest_life_s: float = 1.0, then=lambda: None) -> int:
    """Kills one of the processes that `alive` names, so many times, while all send requests. Nobody gets a wrong answer, and each thread is answered again.
    `then` is called while they still ask. Gives how many requests were told of a dead process."""
    chance = random.Random(SEED)
    for one in threads:
        one.start()
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0, longest_life_s))
            # None may be alive, or one may have ended by itself since.
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(chance.choice(alive()), signal.SIGKILL)
            assert [one.failure for one in [*threads, *witnesses] if not one.is_alive()] == []
        for one in threads:
            seen, deadline = one.answers, time.monotonic() + SETTLE_S
            while one.is_alive() and one.answers < seen + 5:
                assert time.monotonic() < deadline, f"nobody answers {one.protocol} any more"
                time.sleep(0.01)
        then()
    finally:
        for one in threads:
            one.ended.set()
        for one in threads:
            one.join()
    assert [one.failure for one in threads if one.failure] == []
    failed = sum(one.errors for one in threads)
    print(f"{kills} kills: {sum(one.answers for one in threads)} right answers, {failed} requests failed")
    return failed


def check_children_end(server, children: list[int]) -> None:
    """The processes of models end with a server that is killed."""
    os.kill(server.pid, signal.SIGKILL)
    for pid in children:
        comes_to(lambda: state_of(pid) in ("", "Z"), True)
    server.process.wait()
