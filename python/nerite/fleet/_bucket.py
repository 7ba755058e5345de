"""How does a model repository get from a bucket into a folder?

    python -m nerite.fleet fetch s3://bucket/models /models                 # once: an init container
    python -m nerite.fleet fetch s3://bucket/models /models --every 30      # until SIGTERM: beside a server in control mode poll

A round lists the tree, fetches what is not there yet into the staging folder, checks sizes and sums, and then places each model by one rename. It may
be interrupted at any point: the next round resumes.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from nerite.fleet import _bucket_plan as plan
from nerite.fleet import _bucket_sums
from nerite.fleet._bucket_folder import Folder
from nerite.fleet._bucket_plan import SUMS_FILE, BucketError, Remote
from nerite.fleet._bucket_source import Source

# Names of units in one line of the log.
NAMES_SHOWN = 8

__all__ = ["BucketError", "Fetched", "fetch", "main"]


@dataclass
class Fetched:
    """What a round did."""

    objects: int = 0
    size: int = 0
    #: What came over the network, without what an interrupted round had left.
    fetched_bytes: int = 0
    #: Objects of which a part was there.
    resumed: int = 0
    #: Fetched objects that were checked by their size alone.
    unsummed: int = 0
    #: The units (models, or files at the root) that came or changed, and those that went.
    placed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def fetch(url: str, folder: Path, *, options: Optional[Mapping[str, Any]] = None) -> Fetched:
    """Makes ``folder`` hold the tree at ``url``. ``options`` are for the file system of ``fsspec`` that speaks to the store.

    Raises :class:`BucketError`. The folder then holds what it held, or some units (models) are new.
    """
    return copy(Source(url, dict(options or {})), Path(folder))


def copy(source: Source, path: Path) -> Fetched:
    """One round."""
    folder = Folder(path)
    try:
        with folder.locked():
            return _round(source, folder)
    except BucketError as error:
        # Those of the plan know no URL.
        raise error if source.url in str(error) else BucketError(f"{source.url}: {error}") from error.__cause__
    except OSError as cause:
        cure = "free space, or use a larger disk" if cause.errno in (errno.ENOSPC, errno.EDQUOT) else "correct the folder, and try again"
        raise BucketError(f"{source.url} was not copied to {folder.path}: {cause}: {cure}") from cause


def _round(source: Source, folder: Folder) -> Fetched:
    objects, done = plan.checked(source.listed()), Fetched()
    if SUMS_FILE in objects:
        sums = _read_sums(source, folder, objects[SUMS_FILE], done)
        objects = plan.with_sums(objects, sums)
    names = {key: plan.identity(source.url, remote) for key, remote in objects.items()}
    wanted, sizes = plan.units(names), {names[key]: remote.size for key, remote in objects.items()}
    folder.refuse_links(wanted)
    folder.clean(sizes)
    steps = plan.steps(wanted, folder.found(), folder.owned())
    missing = [remote for key, remote in sorted(objects.items()) if not folder.has(names[key], remote.size)]
    needed = sum(max(0, remote.size - folder.begun_bytes(names[remote.key])) for remote in missing)
    plan.check_space(needed, folder.free_bytes(), str(folder.path))
    for remote in missing:
        _fetch_object(source, folder, remote, names[remote.key], done)
    if steps:
        folder.apply(steps, wanted)
        folder.clean(sizes)
    done.objects, done.size = len(objects), sum(remote.size for remote in objects.values())
    done.placed = [step.unit for step in steps if step.kind != "remove"]
    done.removed = [step.unit for step in steps if step.kind == "remove"]
    return done


def _read_sums(source: Source, folder: Folder, remote: Remote, done: Fetched) -> dict[str, str]:
    if remote.size > plan.SUMS_BYTES_MAX:
        raise BucketError(f"{SUMS_FILE} has {remote.size} bytes, more than {plan.SUMS_BYTES_MAX}: name a prefix with fewer objects")
    name = plan.identity(source.url, remote)
    if not folder.has(name, remote.size):
        _fetch_object(source, folder, remote, name, done)
    return plan.parse_sums((folder.objects / name).read_text(errors="replace"))


def _fetch_object(source: Source, folder: Folder, remote: Remote, name: str, done: Fetched) -> None:
    """Fetches what is missing of an object, and checks the whole."""
    partial, have = folder.partial / name, folder.begun_bytes(name)
    have = have if have <= remote.size else 0
    with partial.open("ab" if have else "wb") as file:
        done.resumed += have > 0
        for chunk in source.chunks(remote, have) if have < remote.size else ():
            have += len(chunk)
            if have > remote.size:
                break
            file.write(chunk)
            file.flush()
            done.fetched_bytes += len(chunk)
        os.fsync(file.fileno())
    fresh = source.look(remote)
    if (fresh.size, fresh.validator) != (remote.size, remote.validator):
        partial.unlink()
        raise BucketError(f"{source.url}: object {remote.key!r} was replaced while it was copied: try again")
    if have != remote.size:
        # A part that is too short is resumed.
        if have > remote.size:
            partial.unlink()
        raise BucketError(f"{source.url}: object {remote.key!r} has {remote.size} bytes, and {have} came: try again")
    difference = _bucket_sums.difference(partial, remote.sums or fresh.sums)
    if difference:
        partial.unlink()
        raise BucketError(f"{source.url}: object {remote.key!r} {difference}: try again, or upload it anew")
    done.unsummed += difference is None and remote.key != SUMS_FILE
    folder.complete(name)


def main(words: list[str]) -> int:
    """The command ``fetch``."""
    parser = argparse.ArgumentParser(prog="nerite fleet fetch", description="Copies a model repository from a bucket into a folder.")
    parser.add_argument("url", help="s3://…, gs://…, https://… or file://…")
    parser.add_argument("folder", type=Path, help="the repository of a server of this host")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="copy again after this time, until SIGTERM")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="for fsspec, as anon=true or client_kwargs.region_name=x")
    given = parser.parse_args(words)
    try:
        given.option = options(given.option)
    except ValueError as cause:
        parser.error(str(cause))
    if given.every is not None and not 0 < given.every < float("inf"):
        parser.error("--every is more than 0")
    # The first process of a container has no default action. A round may end anywhere.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM if given.every is None else 0))
    return _once(given) if given.every is None else _repeat(given)


def options(words: list[str]) -> dict[str, Any]:
    """Options of the form KEY=VALUE. Values are JSON, or else texts; a dot in a key goes one mapping deeper."""
    made: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not key or not equals:
            # A value may be a secret, so that it is not repeated.
            raise ValueError(f"--option is KEY=VALUE, and one that begins with {key[:8]!r} is not")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        *outer, last = key.split(".")
        inner = made
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return made


def _once(given: argparse.Namespace) -> int:
    try:
        _say(given, fetch(given.url, given.folder, options=given.option))
    except BucketError as error:
        print(f"nerite fleet fetch: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _repeat(given: argparse.Namespace) -> int:
    failures = 0
    while True:
        failures = 0 if _once(given) == 0 else failures + 1
        time.sleep(plan.delay_s(given.every, failures))


def _say(given: argparse.Namespace, done: Fetched) -> None:
    """One line for a round that changed something."""
    if not (done.placed or done.removed or done.fetched_bytes):
        return
    words = [f"{done.objects} objects of {done.size} bytes, {done.fetched_bytes} fetched"]
    for names, verb in ((done.placed, "placed"), (done.removed, "removed")):
        if names:
            words.append(f"{len(names)} {verb} ({', '.join(names[:NAMES_SHOWN])}{', …' if len(names) > NAMES_SHOWN else ''})")
    if done.unsummed:
        words.append(f"{done.unsummed} checked by their size alone: a file {SUMS_FILE} at the root of the tree has the sums")
    print(f"nerite fleet fetch: {given.folder}: {'; '.join(words)}", file=sys.stderr, flush=True)
