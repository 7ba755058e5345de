"""Does the bill of materials name what the program is made of, and nothing else?

Held against Cargo.lock, and against the program itself: a panic names the file that it is in, and so the crate.
"""

import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import setup_linters

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = f"{platform.machine()}-unknown-linux-gnu"
OWN = "nerite-"
SCRIPT = [sys.executable, ROOT / "packaging" / "sbom.py"]
# Paths of crates of the registry in a program, in a release without the machine's part.
IN_PROGRAM = re.compile(rb"registry/src/[^/\0]+/([A-Za-z0-9_-]+?)-(\d+\.\d+\.\d+[^/\0]*)/")
# Expressions of SPDX as deny.toml allows them.
LICENSE = re.compile(r"\(?[A-Za-z0-9.-]+\)?(?: (?:OR|AND|WITH) \(?[A-Za-z0-9.-]+\)?)*")

pytestmark = pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not on the path")


def made(target: str = TARGET) -> str:
    done = subprocess.run([*SCRIPT, target], capture_output=True, text=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def text() -> str:
    return made()


@pytest.fixture(scope="module")
def bill(text) -> dict:
    return json.loads(text)


@pytest.fixture(scope="module")
def crates(bill) -> dict[str, dict]:
    """All but the standard library, which is no crate of the registry."""
    return {one["bom-ref"]: one for one in bill["components"] if one["name"] != "rust-std"}


@pytest.fixture(scope="module")
def locked() -> dict[str, dict]:
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    return {f"{one['name']}@{one['version']}": one for one in packages}


def needs(package: dict, locked: dict[str, dict]) -> set[str]:
    """What Cargo.lock says that a package may need, whatever the features."""
    found = set()
    for line in package.get("dependencies", []):
        name, _, version = line.partition(" ")
        found |= {key for key, one in locked.items() if one["name"] == name and version in ("", one["version"])}
    return found


def test_each_crate_is_in_the_lock_file_with_its_checksum(crates, locked):
    assert len(crates) > 100
    for key, one in crates.items():
        assert key in locked, key
        checksum = locked[key].get("checksum")
        assert (checksum is None) == one["name"].startswith(OWN), key
        if checksum:
            assert one["hashes"] == [{"alg": "SHA-256", "content": checksum}] and one["purl"] == f"pkg:cargo/{key}"
        assert LICENSE.fullmatch(one["licenses"][0]["expression"]), one["licenses"]


def test_what_a_crate_needs_is_what_the_lock_file_lets_it_need(bill, crates, locked):
    edges = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert set(edges) == set(crates) | {"nerite"}
    assert edges["nerite"] == ["nerite-inprocess@0.1.0", "nerite-server@0.1.0", "rust-std"]
    for key in crates:
        assert set(edges[key]) <= needs(locked[key], locked), key
    # Nothing is listed that nothing needs.
    reached, ahead = set(), [*edges["nerite"][:-1]]
    while ahead:
        key = ahead.pop()
        if key not in reached:
            reached.add(key)
            ahead += edges[key]
    assert reached == set(crates)


def test_the_program_has_no_crate_that_is_not_listed(program, crates):
    linked = {key for key, one in crates.items() if one["scope"] == "required"}
    in_program = {f"{name.decode()}@{version.decode()}" for name, version in IN_PROGRAM.findall(program.read_bytes())}
    assert len(in_program) > 20 and in_program <= linked, in_program - linked


def test_only_what_is_shipped_counts_as_linked(crates):
    scopes = {one["name"]: one["scope"] for one in crates.values()}
    shipped = ("nerite-server", "nerite-bench", "nerite-inprocess", "hyper", "ring", "rustls", "rten", "ort", "tokio")
    assert {scopes[name] for name in shipped} == {"required"}
    # These make code, or build it: a procedural macro, a reader of protobuf, a caller of compilers.
    assert {scopes[name] for name in ("thiserror-impl", "protox", "cc")} == {"excluded"}
    # These only test and measure it.
    assert not {"criterion", "proptest", "xtask"} & set(scopes)


def test_one_commit_gives_the_same_bytes_and_its_own_date(text, bill):
    assert made() == text
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z" and "serialNumber" not in bill


def test_another_machine_has_a_bill_of_its_own(crates):
    bill = json.loads(made("aarch64-unknown-linux-gnu"))
    assert bill["metadata"]["properties"] == [{"name": "nerite:target", "value": "aarch64-unknown-linux-gnu"}]
    assert {"nerite-server", "ring"} <= {one["name"] for one in bill["components"]}


# Prints what is wrong with the document of standard input, or "None".
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))
"""


@pytest.mark.skipif(not setup_linters.is_there(), reason="python3 tests/packaging/setup_linters.py installs the schema")
def test_the_form_is_cyclonedx(text):
    environment = {**os.environ, "PYTHONPATH": str(setup_linters.FOLDER)}
    found = subprocess.run([sys.executable, "-c", VALIDATE], input=text, capture_output=True, text=True, env=environment)
    assert (found.stdout, found.stderr) == ("None\n", "")
