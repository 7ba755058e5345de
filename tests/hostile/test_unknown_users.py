"""Whose is a local TCP connection where the kernel does not tell?

The server starts under a filter (`seccomp(2)`) that refuses the sockets over which the kernel tells it, as some containers do.
"""

import os
import platform
import sys

import numpy as np
import pytest
from confinement import confined
from test_region_owners import ALICE, an_object, infer, names, register, unregister
from users import as_user

# socket(AF_NETLINK, *, NETLINK_SOCK_DIAG) fails with EPROTONOSUPPORT, all else is allowed.
FILTERED = """
import ctypes, os, struct, sys
def step(code, yes, no, value): return struct.pack("HBBI", code, yes, no, value)
LOAD, IS, RETURN = 0x20, 0x15, 0x06
program = b"".join([step(LOAD, 0, 0, 0), step(IS, 0, 5, int(sys.argv[1])), step(LOAD, 0, 0, 16), step(IS, 0, 3, 16),
                    step(LOAD, 0, 0, 32), step(IS, 0, 1, 4), step(RETURN, 0, 0, 0x50000 | 93), step(RETURN, 0, 0, 0x7FFF0000)])
kept = ctypes.create_string_buffer(program)
class Program(ctypes.Structure): _fields_ = [("steps", ctypes.c_ushort), ("first", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0, ctypes.get_errno()
assert libc.prctl(22, 2, ctypes.byref(Program(len(program) // 8, ctypes.addressof(kept))), 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[2], sys.argv[2:])
"""
SOCKET = {"x86_64": 41, "aarch64": 198}


@pytest.fixture
def unknowing(launcher, tmp_path):
    number = SOCKET.get(platform.machine())
    if number is None or os.geteuid() != 0:
        pytest.skip("the filter is for x86-64 and aarch64, and only root can be somebody else")
    with confined(launcher, tmp_path, sys.executable, "-c", FILTERED, str(number)) as server:
        yield server


def test_clients_of_this_host_reach_what_the_servers_user_owns_and_what_is_open_to_all(unknowing):
    assert unknowing.log_text().count("does not tell whose a local TCP connection is") == 1
    with an_object("own", 0, 0o600, 1.0) as (own, _), an_object("open", ALICE, 0o666, 2.0) as (shared, _):
        for name, key in (("own", own), ("open", shared)):
            assert register(unknowing.http, name, key) == (200, "")
            assert infer(unknowing.http, name)[0] == 200
        # They are one client: what one registers, another finds.
        assert as_user(ALICE, lambda: names(unknowing.http)) == ["open", "own"]
        assert unregister(unknowing.http)[0] == 200
    with an_object("hers", ALICE, 0o600, 3.0) as (hers, path):
        status, text = as_user(ALICE, lambda: register(unknowing.http, "hers", hers))
        assert status == 500 and "whose user on this host is not known" in text and "--shm-trust=any" in text, text
        assert np.all(np.frombuffer(path.read_bytes(), np.float32) == 3.0)
