"""Which sums has a store of an object, and does a file have them?"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional

# The best first. What cannot be computed here is left out.
ALGORITHMS = ("sha256", "sha1", "md5", "crc32c", "crc32")
# The fields of S3. It has CRC-64 too, which no library here computes.
S3_FIELDS = {"sha256": "ChecksumSHA256", "sha1": "ChecksumSHA1", "crc32c": "ChecksumCRC32C", "crc32": "ChecksumCRC32"}
GCS_FIELDS = {"md5": "md5Hash", "crc32c": "crc32c"}
READ_BYTES = 1 << 20


def of(scheme: str, info: Mapping[str, Any]) -> dict[str, str]:
    """The sums in a store's answer, in hexadecimal digits."""
    fields = {"s3": S3_FIELDS, "gs": GCS_FIELDS}.get(scheme, {})
    found = {algorithm: str(info[field]) for algorithm, field in fields.items() if info.get(field)}
    # The sum of an upload in parts is a sum of sums, with the number of parts behind it.
    made = {algorithm: base64.b64decode(value).hex() for algorithm, value in found.items() if "-" not in value}
    etag = str(info.get("ETag", "")).strip('"')
    # An ETag is an MD5, but not of an upload in parts, and not under a key of AWS's key service or of the client.
    is_md5 = info.get("ServerSideEncryption") in (None, "AES256") and not info.get("SSECustomerAlgorithm")
    if scheme == "s3" and is_md5 and re.fullmatch("[0-9a-f]{32}", etag):
        made["md5"] = etag
    return made


def difference(path: Path, sums: Mapping[str, str]) -> Optional[str]:
    """A text if the file has another sum, an empty one if it has the best of these, and None if none of them can be computed here."""
    for algorithm in ALGORITHMS:
        compute = _computing(algorithm) if algorithm in sums else None
        if compute is not None:
            found = compute(path)
            return "" if found == sums[algorithm] else f"has the {algorithm} {found}, and should have {sums[algorithm]}"
    return None


def _computing(algorithm: str) -> Optional[Callable[[Path], str]]:
    if algorithm == "crc32":
        return lambda path: _cyclic(path, zlib.crc32)
    if algorithm == "crc32c":
        try:
            # gcsfs depends on it.
            import google_crc32c
        except ImportError:
            return None
        return lambda path: _cyclic(path, lambda chunk, value: google_crc32c.extend(value, chunk))
    return lambda path: _hash(path, algorithm)


def _hash(path: Path, algorithm: str) -> str:
    # None of these sums protects from an attacker who can write to the bucket, so that MD5 will do.
    state = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            state.update(chunk)
    return state.hexdigest()


def _cyclic(path: Path, extended: Callable[[bytes, int], int]) -> str:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            value = extended(chunk, value)
    return f"{value:08x}"
