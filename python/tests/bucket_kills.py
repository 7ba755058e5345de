"""What does a folder hold after a copy was killed at any of its steps?

    python bucket_kills.py FOLDER

Each step is a change of the file system, or the reading of a chunk. A child ends itself by SIGKILL before its first, second, third … step. The
program prints how many there were, and fails where a unit was neither the old one nor the new one, or where the next round did not mend it.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from bucket_store import Store, content, staged

from nerite.fleet import _bucket_folder

CHANGES = ("rename", "replace", "link", "unlink", "rmdir", "mkdir", "chmod", "fsync")
OLD = {"a/1/model.py": "old one", "a/config.pbtxt": "old", "b/1/model.py": "b", "labels.txt": "old labels"}
NEW = {"a/1/model.py": "old one", "a/2/model.py": "new two", "a/config.pbtxt": "new", "c/1/model.py": "c", "labels.txt": "new labels"}


def store(objects: "dict[str, str]") -> Store:
    made = Store()
    for key, value in objects.items():
        made.put(key, value)
    return made


def killed_at(step: int, folder: Path, objects: "dict[str, str]") -> bool:
    """Copies in a child that is killed before this step. False if it had no such step."""
    child = os.fork()
    if child == 0:
        left = step

        def count(*_) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(call):
            def counting(*args, **kwargs):
                count()
                return call(*args, **kwargs)

            return counting

        for name in CHANGES:
            setattr(os, name, counted(getattr(os, name)))
        _bucket_folder.exchange = counted(_bucket_folder.exchange)
        source = store(objects)
        source.before_chunk = count
        source.copy_to(folder)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def by_unit(files: "dict[str, str]") -> "dict[str, dict[str, str]]":
    made = {}
    for key, value in files.items():
        made.setdefault(key.partition("/")[0], {})[key] = value
    return made


def check(step: int, folder: Path, before: "dict[str, str]", after: "dict[str, str]") -> None:
    found, old, new = by_unit(content(folder)), by_unit(before), by_unit(after)
    for unit in {*found, *old, *new}:
        assert found.get(unit) in (old.get(unit), new.get(unit)), (step, unit, found.get(unit))
    store(after).copy_to(folder)
    assert content(folder) == after, (step, content(folder))
    left = {name: len(staged(folder, name)) for name in ("partial", "trees", "objects")}
    assert left == {"partial": 0, "trees": 0, "objects": len(after)}, (step, left)


def main(folder: Path) -> None:
    # Kills of a process lose nothing that the kernel has.
    os.fsync = lambda descriptor: None
    for before in ({}, OLD):
        step = 1
        while True:
            shutil.rmtree(folder, ignore_errors=True)
            if before:
                store(before).copy_to(folder)
            if not killed_at(step, folder, NEW):
                break
            check(step, folder, before, NEW)
            step += 1
        print(step - 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
