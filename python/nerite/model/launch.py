"""How does the process get its modules without files? In the first packet on its standard input."""

import json
import os
import socket
import sys
from typing import Any


class SentModules:
    """Imports the modules that the server sent, and provides their lines for tracebacks."""

    def __init__(self, sources: "dict[str, str]") -> None:
        self.sources, self.get_source = sources, sources.get

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return type(sys.__spec__)(name, self, is_package="." not in name) if self.get_source(name) is not None else None

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(compile(self.get_source(module.__name__, ""), f"<nerite>/{module.__name__}.py", "exec"), module.__dict__)


channel = socket.socket(fileno=os.dup(0))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
text, beside, _, _ = channel.recvmsg(1 << 16, socket.CMSG_SPACE(256), socket.MSG_CMSG_CLOEXEC)
descriptors = [one for _, _, some in beside for one in memoryview(some).cast("i")]
first = json.loads(text or sys.exit())
if "long" in first:
    with open(descriptors.pop(0), "rb") as file:
        first = json.loads(os.pread(file.fileno(), first["long"], 0))
if sys.version_info < (3, 9):
    # The check precedes the model's code, whose errors would hide the reason. The server then checks this Python, and reports what is wrong.
    sys.exit()
try:
    import numpy  # noqa: F401
except ImportError:
    # The server then checks for numpy too.
    sys.exit()
# A line is written whole, not in the parts that `print` makes of it. The server passes on what it reads, so a line of its log could come in between.
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(line_buffering=True, write_through=False)
sys.meta_path.insert(0, SentModules(first["modules"]))
main = __import__(first["main"], fromlist=["run"])
main.run(channel, socket.socket(fileno=descriptors[0]), *descriptors[1:])
