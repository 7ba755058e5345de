"""How does a test act as another user?"""

import concurrent.futures
import ctypes

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_SETRESUID, SYS_SETRESGID = 117, 119


def as_user(uid: int, act):
    """Does it in a thread whose effective user and group are `uid`, which only root may.

    The system calls are made past the C library, which would change the whole process. `act` must start no process: gRPC's library starts its
    threads anew after a fork, as the user of the thread that forked, and later connections of the process would be that user's.
    """

    def change_and_act():
        assert LIBC.syscall(SYS_SETRESGID, -1, uid, -1) == 0, ctypes.get_errno()
        assert LIBC.syscall(SYS_SETRESUID, -1, uid, -1) == 0, ctypes.get_errno()
        return act()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(change_and_act).result()
