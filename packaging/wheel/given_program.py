#!/usr/bin/env python3
"""How does `maturin` come by a program that is compiled already?

It starts this in place of cargo, and reads from it what was compiled: the program of NERITE_BIN.
"""

import json
import os
import subprocess
import sys

PACKAGE, PROGRAM = "nerite-server", "nerite"


def compiled(path: str) -> dict:
    """What cargo tells when it has compiled the program."""
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version=1"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    package = next(one for one in metadata["packages"] if one["name"] == PACKAGE)
    target = next(one for one in package["targets"] if one["name"] == PROGRAM and "bin" in one["kind"])
    profile = {"opt_level": "3", "debuginfo": 0, "debug_assertions": False, "overflow_checks": True, "test": False}
    return {
        "reason": "compiler-artifact",
        "package_id": package["id"],
        "target": target,
        "profile": profile,
        "features": [],
        "filenames": [path],
        "executable": path,
        "fresh": True,
    }


def check_version(path: str, version: str) -> None:
    """Refuses the program of another version."""
    # A program for another machine runs under an emulator.
    command = [*os.environ.get("NERITE_RUNNER", "").split(), path, "version"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    if printed != [PROGRAM, version]:
        sys.exit(f"{path} is {' '.join(printed)}, and the wheel is {PROGRAM} {version}")


if sys.argv[1:2] != ["rustc"]:
    os.execvp("cargo", ["cargo", *sys.argv[1:]])
given = os.path.abspath(os.environ["NERITE_BIN"])
message = compiled(given)
check_version(given, message["package_id"].rpartition("@")[2])
print(json.dumps(message))
