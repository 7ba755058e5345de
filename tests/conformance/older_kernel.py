"""How does a server run as on a kernel that cannot refuse descriptors (Linux before 6.16)?

    python3 older_kernel.py COMMAND …

A filter of the kernel's (seccomp) answers the socket option SO_PASSRIGHTS as an older kernel does. So any build of the server can be tested, and it has no
switch for that.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

SETSOCKOPT = {"x86_64": 54, "aarch64": 208}
SO_PASSRIGHTS = 83

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
# Where a filter finds the number of the call, and the lower half of its second and third argument.
NUMBER, LEVEL, OPTION = 0, 24, 32


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def steps() -> list[tuple[int, int, int, int]]:
    """The filter: code, steps to skip if equal, steps to skip if not, number."""
    call = SETSOCKOPT[platform.machine()]
    return [
        (LOAD, 0, 0, NUMBER),
        (JUMP_IF_EQUAL, 0, 5, call),
        (LOAD, 0, 0, LEVEL),
        (JUMP_IF_EQUAL, 0, 3, socket.SOL_SOCKET),
        (LOAD, 0, 0, OPTION),
        (JUMP_IF_EQUAL, 0, 1, SO_PASSRIGHTS),
        (RETURN, 0, 0, RET_ERRNO | errno.ENOPROTOOPT),
        (RETURN, 0, 0, RET_ALLOW),
    ]


def make_older() -> None:
    """From now on this process, and what it becomes and starts, has such a kernel."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(struct.pack("HBBI", *step) for step in steps())
    program = Program(len(steps()), code)
    for arguments in [
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ]:
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        except OSError as error:
            assert error.errno == errno.ENOPROTOOPT
        else:
            raise AssertionError("the filter has no effect")


if __name__ == "__main__":
    make_older()
    os.execvp(sys.argv[1], sys.argv[1:])
