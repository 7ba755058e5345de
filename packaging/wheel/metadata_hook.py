"""Which version is the wheel, and what does it depend on?

Its clients are those of the same version, and their extras are its own.
"""

from __future__ import annotations

import pathlib
import re

from hatchling.metadata.plugin.interface import MetadataHookInterface

VERSION = pathlib.Path(__file__).resolve().parent.parent.parent / "python" / "nerite" / "_version.py"
EXTRAS = ("http", "grpc", "cuda", "all")


def version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', VERSION.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{VERSION} names no version")
    return found[1]


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        metadata["version"] = version()
        metadata["dependencies"] = [f"nerite-client=={version()}"]
        metadata["optional-dependencies"] = {extra: [f"nerite-client[{extra}]=={version()}"] for extra in EXTRAS}
