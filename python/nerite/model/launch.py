"""How does a child get the modules it runs, without a file of theirs anywhere? Over its standard input, in the first packet."""

import json
import os
import socket
import sys


class Given:
    """Imports the modules that the server sent."""

    sources = {}

    def find_spec(name, path=None, target=None):
        if name in Given.sources:
            is_package = any(other.startswith(name + ".") for other in Given.sources)
            return type(sys.__spec__)(name, Given, is_package=is_package)

    def create_module(spec):
        return None

    def exec_module(module):
        exec(compile(Given.sources[module.__name__], f"<nerite>/{module.__name__}.py", "exec"), module.__dict__)

    def get_source(name):  # what a traceback shows
        return Given.sources.get(name)


def main():
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    text, beside, _, _ = channel.recvmsg(1 << 16, socket.CMSG_SPACE(256), socket.MSG_CMSG_CLOEXEC)
    descriptors = [one for _, _, data in beside for one in memoryview(data).cast("i")]
    first = json.loads(text or sys.exit())
    if "long" in first:
        with open(descriptors.pop(0), "rb") as file:
            first = json.loads(os.pread(file.fileno(), first["long"], 0))
    Given.sources = first["modules"]
    sys.meta_path.insert(0, Given)
    run = getattr(__import__(first["main"], fromlist=["run"]), "run")
    run(channel, socket.socket(fileno=descriptors[0]), descriptors[1] if len(descriptors) > 1 else None)


main()
