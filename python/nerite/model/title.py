"""What do lists of processes show for this process?

``ps`` reads the command line from the memory in which the kernel put it. A title is written there, as other servers do it.
"""

from __future__ import annotations

_ARGUMENTS_START, _ARGUMENTS_END = 48, 49


def show(title: str) -> None:
    """Shows the title in place of the command line, as far as it has room there. Does nothing if this system does not allow it."""
    try:
        import ctypes

        with open("/proc/self/stat") as file:
            # The second field is the name of the program in parentheses, which may have spaces.
            fields = file.read().rpartition(")")[2].split()
        start, end = (int(fields[number - 3]) for number in (_ARGUMENTS_START, _ARGUMENTS_END))
        if not 0 < start < end:
            return
        # The last byte stays zero. Otherwise the kernel would take the environment, which follows, for a part of the title.
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)
    except (ImportError, OSError, ValueError, IndexError):
        pass
