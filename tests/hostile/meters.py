"""How does a test see how much memory a server has, and what it says about that itself?"""

import contextlib
import http.client
import re
import threading
import time

from clients import http_call


class peak:
    """The most that `look` saw while this was entered. What it fails to see does not count."""

    def __init__(self, look, pause_s: float = 0.02):
        self.look, self.pause_s, self.most, self.ended = look, pause_s, 0, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.ended.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, KeyError, ValueError, TypeError):
                self.most = max(self.most, self.look())
            time.sleep(self.pause_s)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.ended.set()
        self.thread.join()


def metric(server, name: str) -> int:
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    return int(float(re.search(rf"^{re.escape(name)} (\S+)$", page, re.M)[1]))
