"""What is ``python -m nerite``?

It runs the server. Python models run with this interpreter: ``python -m nerite serve --model-repository DIR``.
"""

from __future__ import annotations

import os
import sys

from nerite import _binary


def main() -> int:
    try:
        program = _binary.binary()
    except _binary.ServerMissing as error:
        print(f"python -m nerite: {error}", file=sys.stderr)
        return 1
    _binary.warn_of_other_version()
    os.execve(program, [_binary.NAME, *sys.argv[1:]], _binary.environment())


if __name__ == "__main__":
    sys.exit(main())
