"""What may a client do to its own regions, and what must it hear then, whoever reads them?

`through` brings bytes from one region to another: by way of a model of the server's, or of one in a process of its own.
"""

import contextlib
import ctypes
import os
import random
import struct
import threading

import numpy as np
import pytest
from clients import Refused, refuses
from passages import SIZE, check_lost, lost
from witness import lent, times, torn

PAGE = os.sysconf("SC_PAGESIZE")
SHRUNK = [0, PAGE, SIZE // 2 + 100]
KEYS_AFTERWARDS = [(False, "its key is gone now"), (True, "its key leads to another object now")]
# Lengths that a string of four bytes may claim.
LIES = [5, 60, SIZE, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1]


class Meanwhile(threading.Thread):
    """Does a thing again and again as long as the `with` block lasts."""

    def __init__(self, action):
        super().__init__()
        self.action, self.ended, self.failure = action, threading.Event(), None

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                self.action()
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            self.failure = failure

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()
        assert self.failure is None, self.failure


def punch_hole(path, offset: int, byte_size: int) -> None:
    """fallocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)"""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDWR)
    try:
        done = libc.fallocate(descriptor, 3, ctypes.c_long(offset), ctypes.c_long(byte_size))
        assert done == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------------------------- sizes


def shrink_and_register_again(client, through, side: str, left: int, is_known: bool) -> None:
    """`is_known`: whether a request has used the region before."""
    content = random.Random(1).randbytes(SIZE)
    with lent(client, SIZE, content) as bad, lent(client, SIZE, content) as good:
        source, target = (bad, good) if side == "input" else (good, bad)
        if is_known:
            through(client, source, target)
        os.truncate(bad.path, left)
        # The first request finds it out, the others are told.
        for _ in range(3):
            with refuses("INVALID_ARG", lost(bad, f"has {left} now (touched at offset ")):
                through(client, source, target)
        good.write(content)
        through(client, good, good)
        assert good.read(SIZE) == content
        os.truncate(bad.path, SIZE)
        bad.write(content)
        with refuses("INVALID_ARG", lost(bad, f"has {SIZE} now, but no memory when it was touched")):
            through(client, source, target)
        # Nobody has to unregister it first.
        client.register_system(bad.name, bad.key, SIZE)
        through(client, source, target)
        assert target.read(SIZE) == content
        with refuses("ALREADY_EXISTS", f"shared memory region '{bad.name}' already in manager"):
            client.register_system(bad.name, bad.key, SIZE)


def shrink_within_the_last_page(client, through) -> None:
    content = b"\x11" * SIZE
    with lent(client, SIZE, content) as made, lent(client, SIZE) as target:
        os.truncate(made.path, SIZE - 100)
        through(client, made, target)
        assert target.read(SIZE) == content[:-100] + bytes(100)


def grow(client, through) -> None:
    content = random.Random(5).randbytes(SIZE)
    with lent(client, SIZE, content) as made, lent(client, SIZE) as target:
        through(client, made, target)
        os.truncate(made.path, 8 * SIZE)
        through(client, made, target)
        assert target.read(SIZE) == content


def shrink_and_grow_all_the_time(client, through, more: float = 0.0) -> None:
    """Each answer holds the client's own numbers or zeros, or is refused by the region's name. `more` is what the model adds."""
    word = struct.pack("<f", 1.5)
    with lent(client, SIZE, word * (SIZE // 4)) as bad, lent(client, SIZE) as good:

        def breathe():
            os.truncate(bad.path, 0)
            os.truncate(bad.path, SIZE)
            with contextlib.suppress(ValueError), bad.path.open("r+b") as file:
                file.write(word * (SIZE // 4))

        def check():
            through(client, bad, good)
            assert set(np.frombuffer(good.read(SIZE), np.float32).tolist()) <= {value + more for value in torn(0.0, 1.5)}

        be_refused_now_and_then(client, bad, breathe, check)


def be_refused_now_and_then(client, bad, breathe, check) -> None:
    """Checks again and again what is answered while the region `breathe`s, and registers it again when it was lost."""
    refused = 0
    with Meanwhile(breathe):
        for _ in times(200, lambda: refused):
            try:
                check()
            except Refused as failure:
                refused += 1
                check_lost(failure, bad, "")
                with contextlib.suppress(Refused):
                    client.register_system(bad.name, bad.key, SIZE)
    assert refused > 0


# ---------------------------------------------------------------------------------------------- holes and keys


def punch(client, through, is_known: bool) -> None:
    content = b"\x22" * SIZE
    with lent(client, SIZE, content) as made, lent(client, SIZE, content) as target:
        if is_known:
            through(client, made, target)
        punch_hole(made.path, PAGE, PAGE)
        punch_hole(target.path, 0, SIZE)
        through(client, made, target)
        assert target.read(SIZE) == content[:PAGE] + bytes(PAGE) + content[2 * PAGE :]


def punch_all_the_time(client, through, count: int) -> None:
    word = struct.pack("<f", 2.5)
    with lent(client, SIZE, word * (SIZE // 4)) as made, lent(client, SIZE) as target:

        def punch_both():
            punch_hole(made.path, 0, SIZE)
            punch_hole(target.path, PAGE, SIZE // 2)
            made.write(word * (SIZE // 4))

        with Meanwhile(punch_both):
            for _ in range(count):
                through(client, made, target)
                assert set(np.frombuffer(target.read(SIZE), np.float32).tolist()) <= torn(0.0, 2.5)


def give_the_key_to_another_object(client, through) -> None:
    old, new = b"\x33" * SIZE, b"\x44" * SIZE
    with lent(client, SIZE, old) as made, lent(client, SIZE) as target:
        made.path.unlink()
        through(client, made, target)
        assert target.read(SIZE) == old
        made.path.write_bytes(new)
        through(client, made, target)
        assert target.read(SIZE) == old, "the registration means the object, not the key"
        client.unregister("system", made.name)
        client.register_system(made.name, made.key, SIZE)
        through(client, made, target)
        assert target.read(SIZE) == new


def shrink_and_remove_the_key(client, through, anew: bool, says: str, is_known: bool) -> None:
    """`anew`: whether another object gets the key."""
    with lent(client, SIZE) as made, lent(client, SIZE) as target:
        if is_known:
            through(client, made, target)
        os.truncate(made.path, 0)
        made.path.unlink()
        if anew:
            made.path.write_bytes(b"\x55" * SIZE)
        with pytest.raises(Refused) as caught:
            through(client, made, target)
        check_lost(caught.value, made, "was cut short or without room (touched at offset ")
        assert says in caught.value.text
