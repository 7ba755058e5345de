"""Which objects has a store, and what is in them?

``fsspec`` speaks to the store. It is imported here, at first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Optional
from urllib.parse import unquote, urlsplit, urlunsplit

from nerite.fleet import _bucket_sums
from nerite.fleet._bucket_plan import DEPTH_MAX, OBJECTS_MAX, BucketError, Remote

# The schemes, and the package that speaks each.
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "https": "aiohttp", "http": "aiohttp", "file": "fsspec"}
# Bytes of one request. So many may have to be fetched again after a lost connection.
CHUNK_BYTES = 8 << 20
SECRET = re.compile("secret|token|password|passwd|key|credential|auth", re.IGNORECASE)
SECRET_BYTES_MIN = 4


class Source:
    """The tree of objects below a URL."""

    def __init__(self, url: str, options: Mapping[str, Any]):
        try:
            self.url = shown(url)
        except ValueError:
            raise BucketError("the URL has an address in another form than '[::1]' or 'host': correct it") from None
        self.scheme = url.partition("://")[0]
        self._secrets = secrets(url, options)
        if self.scheme not in PACKAGES or "?" in url or "#" in url or "::" in url:
            raise BucketError(f"'{self.url}' is no tree of {', '.join(PACKAGES)} without a query: correct the URL")
        cure = f"pip install 'nerite[fleet]' {PACKAGES[self.scheme]}"
        try:
            from fsspec.core import url_to_fs

            self._system, self._root = url_to_fs(url.rstrip("/"), **options)
        except ImportError as cause:
            raise BucketError(f"{self.url}: {cause}: {cure}") from None
        except Exception as cause:
            raise self._error("cannot be opened", cause) from None

    def listed(self) -> list[Remote]:
        """All objects, in no order."""
        try:
            # The file system object is shared by all rounds of a process, and keeps listings.
            self._system.invalidate_cache()
            return self._pages() if self.scheme in ("http", "https") else self._found()
        except BucketError:
            raise
        except Exception as cause:
            raise self._error("cannot be listed", cause) from None

    def chunks(self, remote: Remote, start: int) -> Iterator[bytes]:
        """The content from this byte on. Each chunk is one request for a range."""
        try:
            yield from self._ranges(remote.place, start)
        except Exception as cause:
            raise self._error(f"object {remote.key!r} cannot be read", cause) from None

    def look(self, remote: Remote) -> Remote:
        """The object as it is now, with the sums that the store has."""
        try:
            self._system.invalidate_cache()
            info = self._head(remote.place) if self.scheme == "s3" else self._system.info(remote.place)
        except Exception as cause:
            raise self._error(f"object {remote.key!r} cannot be read", cause) from None
        return Remote(remote.key, size_of(remote.key, info), validator(info), remote.place, _bucket_sums.of(self.scheme, info))

    def _found(self) -> list[Remote]:
        found = []
        for name, info in self._system.find(self._root, detail=True).items():
            key = name[len(self._root) :].removeprefix("/")
            if not key and not name.endswith("/"):
                raise BucketError(f"{self.url} is an object and no tree: name the prefix above it")
            # What consoles make for an empty folder.
            if not (info["size"] == 0 and (not key or key.endswith("/"))):
                found.append(Remote(key, size_of(key, info), validator(info), name))
        return found

    def _pages(self) -> list[Remote]:
        """What index pages link to, below the URL."""
        found, pages, seen = [], [self._root.rstrip("/") + "/"], set()
        base = len(pages[0])
        while pages:
            for link in self._system.ls(pages.pop(), detail=False):
                key = below(link[base:]) if link.startswith(self._root.rstrip("/") + "/") else None
                if key is None or link in seen:
                    continue
                seen.add(link)
                if len(seen) > OBJECTS_MAX or key.count("/") > DEPTH_MAX:
                    raise BucketError(f"{self.url} links to more than {OBJECTS_MAX} names or {DEPTH_MAX} folders deep: name a folder with fewer")
                if link.endswith("/"):
                    pages.append(link)
                    continue
                info = self._system.info(link)
                found.append(Remote(key, size_of(key, info), validator(info), link))
        return found

    def _ranges(self, place: str, start: int) -> Iterator[bytes]:
        try:
            # With this cache the object reads what it was told to, and not ahead.
            with self._system.open(place, "rb", block_size=CHUNK_BYTES, cache_type="none") as file:
                file.seek(start)
                while chunk := file.read(CHUNK_BYTES):
                    start += len(chunk)
                    yield chunk
        except ValueError:
            if self.scheme not in ("http", "https"):
                raise
            # A server that does not serve ranges: what is there already is read once more.
            with self._system.open(place, "rb", block_size=0) as file:
                while start and (chunk := file.read(min(start, CHUNK_BYTES))):
                    start -= len(chunk)
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk

    def _head(self, place: str) -> Mapping[str, Any]:
        bucket, key, _ = self._system.split_path(place)
        head = self._system.call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        return {**head, "size": head["ContentLength"]}

    def _error(self, what: str, cause: Exception) -> BucketError:
        text = f"{type(cause).__name__}: {cause}"
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return BucketError(f"{self.url}: {what}: {text}")


def shown(url: str) -> str:
    """The URL without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def secrets(url: str, options: Mapping[str, Any]) -> list[str]:
    """What no log may contain, the longest first."""
    found = [urlsplit(url).netloc.rpartition("@")[0], urlsplit(url).password or "", urlsplit(url).query]

    def collect(value: Any, is_secret: bool) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                collect(inner, is_secret or bool(SECRET.search(str(name))))
        elif is_secret:
            found.append(str(value))

    collect(options, False)
    return sorted((one for one in found if len(one) >= SECRET_BYTES_MIN), key=len, reverse=True)


def below(rest: str) -> Optional[str]:
    """The key of a link's end, or None for a link to another page."""
    parts = rest.rstrip("/").split("/")
    return None if not rest or set("?#") & set(rest) or {".", ".."} & set(parts) else unquote(rest)


def size_of(key: str, info: Mapping[str, Any]) -> int:
    if info.get("size") is None:
        raise BucketError(f"the server does not tell the size of {key!r}: serve it as a plain file, without compression")
    return int(info["size"])


def validator(info: Mapping[str, Any]) -> str:
    """What differs when the content does."""
    etag = info.get("ETag") or info.get("etag") or info.get("generation") or info.get("Last-Modified")
    if etag is None and "ino" in info:
        etag = f"{info['mtime']}-{info['ino']}"
    return str(etag or "").strip('"')
