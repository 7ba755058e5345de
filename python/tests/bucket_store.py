"""How is a store in memory listed and read, that can be made to fail?"""

import hashlib
from pathlib import Path

from nerite.fleet._bucket import Fetched, copy
from nerite.fleet._bucket_plan import BucketError, Remote

CHUNK_BYTES = 4


class Store:
    """Objects in memory, with the interface of ``_bucket_source.Source``."""

    url = "s3://bucket"

    def __init__(self, **objects: str):
        self.objects = {key.replace("__", "/"): value.encode() for key, value in objects.items()}
        #: Chunks until the connection is lost. None if it is not.
        self.chunks_left = None
        self.has_sums = True
        #: Called before each chunk.
        self.before_chunk = lambda key: None
        #: The keys and first bytes of all reads.
        self.reads = []

    def put(self, key: str, value: str) -> None:
        self.objects[key] = value.encode()

    def listed(self) -> "list[Remote]":
        return [self._remote(key) for key in self.objects]

    def look(self, remote: Remote) -> Remote:
        return self._remote(remote.key)

    def chunks(self, remote: Remote, start: int):
        self.reads.append((remote.key, start))
        value = self.objects[remote.key]
        for at in range(start, len(value), CHUNK_BYTES):
            self.before_chunk(remote.key)
            if self.chunks_left is not None:
                if self.chunks_left == 0:
                    raise BucketError("the connection was lost")
                self.chunks_left -= 1
            yield self.objects[remote.key][at : at + CHUNK_BYTES]

    def _remote(self, key: str) -> Remote:
        value = self.objects[key]
        md5 = hashlib.md5(value).hexdigest()
        return Remote(key, len(value), md5, key, {"md5": md5} if self.has_sums else {})

    def copy_to(self, folder: Path) -> Fetched:
        return copy(self, folder)


def content(folder: Path) -> "dict[str, str]":
    """All files of a folder, but those of the staging folder."""
    files = [path for path in folder.rglob("*") if path.is_file() and "..nerite-fetch" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def staged(folder: Path, name: str) -> "list[str]":
    return sorted(path.name for path in (folder / "..nerite-fetch" / name).iterdir())
