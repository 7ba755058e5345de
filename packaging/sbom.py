#!/usr/bin/env python3
"""Which crates is the program made of?

    python3 packaging/sbom.py x86_64-unknown-linux-gnu > nerite.cdx.json

A bill of materials in CycloneDX 1.6: what is linked into the program and into libtritonserver.so, and, with the scope `excluded`, what only builds
them. `cargo tree` says which crates the shipped features need, and Cargo.lock what their archives hash to. One commit gives the same bytes each
time: the date is SOURCE_DATE_EPOCH's, and there is no serial number.
"""

import collections
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What a release builds (xtask/src/release.rs).
SHIPPED = ("nerite-server", "nerite-inprocess")
# One line of `cargo tree --prefix depth`: depth, name, version, remarks such as `(proc-macro)` and a path, then what FORMAT adds.
FORMAT = "{p}\t{l}\t{r}"
LINE = re.compile(r"(?P<depth>\d+)(?P<name>\S+) v(?P<version>\S+)(?P<remarks>[^\t]*)\t(?P<license>[^\t]*)\t(?P<repository>\S*)")

Crate = collections.namedtuple("Crate", "name version")


def tree(target: str, edges: str, packages: tuple[str, ...] = SHIPPED) -> tuple[dict[Crate, re.Match[str]], dict[Crate, set[Crate]]]:
    """The crates that `packages` need through `edges`, each with a line that tells of it, and what each needs itself."""
    command = [os.environ.get("CARGO", "cargo"), "tree", "--locked", "--prefix", "depth", "--format", FORMAT, "--target", target, "-e", edges]
    for package in packages:
        command += ["-p", package]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines, needs, above = {}, collections.defaultdict(set), []
    for line in filter(None, text.splitlines()):
        found = LINE.match(line)
        if found is None:
            raise ValueError(f"'{line}' is no line of cargo tree that this script knows")
        crate = Crate(found["name"], found["version"])
        lines.setdefault(crate, found)
        depth = int(found["depth"])
        del above[depth:]
        if above:
            needs[above[-1]].add(crate)
        above.append(crate)
    return lines, needs


def checksums() -> dict[Crate, str]:
    """The SHA-256 of each archive of the registry."""
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    return {Crate(one["name"], one["version"]): one["checksum"] for one in packages if "checksum" in one}


def reference(crate: Crate) -> str:
    return f"{crate.name}@{crate.version}"


def component(crate: Crate, line: re.Match[str], checksum: str | None, is_linked: bool) -> dict:
    entry = {"type": "library", "bom-ref": reference(crate), "name": crate.name, "version": crate.version}
    entry["scope"] = "required" if is_linked else "excluded"
    if line["license"]:
        # Old manifests part alternatives by a slash.
        entry["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", line["license"])}]
    if line["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": line["repository"]}]
    # The project's own crates are in no registry.
    if checksum:
        entry |= {"purl": f"pkg:cargo/{crate.name}@{crate.version}", "hashes": [{"alg": "SHA-256", "content": checksum}]}
    return entry


def bill(target: str) -> dict:
    """The bill of materials of a program for this target."""
    linked, _ = tree(target, "normal,no-proc-macro")
    lines, needs = tree(target, "normal,build")
    version = next(crate.version for crate in linked if crate.name == SHIPPED[0])
    compiler = subprocess.run(["rustc", "--version"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()[1]
    std = {"type": "library", "bom-ref": "rust-std", "name": "rust-std", "version": compiler, "licenses": [{"expression": "MIT OR Apache-2.0"}]}
    sums = checksums()
    roots = sorted(reference(crate) for crate in lines if crate.name in SHIPPED)
    date = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.UTC)
    program = {"type": "application", "bom-ref": "nerite", "name": "nerite", "version": version, "licenses": [{"expression": "Apache-2.0"}]}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": date.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": program,
            "properties": [{"name": "nerite:target", "value": target}],
        },
        "components": [component(crate, lines[crate], sums.get(crate), crate in linked) for crate in sorted(lines)] + [std],
        "dependencies": [
            {"ref": "nerite", "dependsOn": [*roots, "rust-std"]},
            *({"ref": reference(crate), "dependsOn": sorted(map(reference, needs[crate]))} for crate in sorted(lines)),
        ],
    }


if __name__ == "__main__":
    json.dump(bill(sys.argv[1]), sys.stdout, indent=1, ensure_ascii=False)
    print()
