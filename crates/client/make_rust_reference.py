"""What does the API reference of the Rust client say? Written to docs/rust-client.md from the comments in the sources.

    python3 crates/client/make_rust_reference.py                        # writes the page
    .venv/bin/python -m pytest tests/packaging/test_rust_reference.py   # fails if it is not current
"""

import pathlib
import re
import sys
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "python"))

from make_reference import cell  # noqa: E402

SOURCES = HERE / "src"
PAGE = HERE.parent.parent / "docs" / "rust-client.md"
EXAMPLE = HERE / "examples" / "sum.rs"
# In the order of the page. The calls of the client for gRPC are those of the client for HTTP, but for what is listed.
TYPES = (
    "http::Client", "grpc::Client", "grpc::InferStream", "grpc::StreamReply", "ClientOptions", "Tls", "Request", "Tensor", "Response", "Output", "Region",
    "RegisteredRegion", "Registrar", "SharedMemory", "View", "Session", "SessionOptions", "SessionServer", "SessionTerms", "SessionUse", "SessionStream",
    "PreparedRequest", "Prepared", "Lease", "TensorBuffer", "Element", "Error", "HandshakeFault",
)  # fmt: skip
FUNCTIONS = ("default_path", "session_server")
# Types of the server's own crates, which the client uses as well.
OF_OTHERS = {
    "DataType": "A tensor's type of elements.",
    "Shape": "A tensor's dimensions.",
    "Code": "The kind of an error of the server.",
    "Parameter": "A value that goes with a request or a response.",
    "Parameters": "All of them, by name.",
    "RegionRef": "A part of a region: its name, an offset and a size.",
    "Cells": "Elements in memory that others may write: they are read one by one, or copied.",
    "CellsMut": "The same, which can be written.",
    "NoMemory": "Why memory was refused.",
}
# Modules of the crate, with what they hold.
MODULES = {
    "blocking": "Both clients for programs without an async runtime. Each call waits. `blocking::wait` waits for any other future of the crate.",
    "report": "What the server says about itself, its models and its regions.",
    "inspect": "What an operator's session sees of the regions and sessions of all clients.",
}
HEAD = """# The Rust client: API reference

<!-- Written by crates/client/make_rust_reference.py from the comments in the sources; a test fails if it is not current. -->

This page is for programmers who look up a call of the crate `nerite-client`. The crate calls nerite, and every other server that speaks Triton's protocols, over HTTP and gRPC. It also calls nerite over a session. Calls
are `async`, except those of `nerite_client::blocking`, which wait. This page has one line for each public name. `cargo doc -p nerite-client --no-deps --open`
shows more of each, with examples.

A program that calls the model `simple` of [`examples/models`](../examples/README.md) through shared memory,
[`crates/client/examples/sum.rs`](../crates/client/examples/sum.rs):

<!-- not run: crates/server/tests/client_example.rs runs it -->
"""


class Item(NamedTuple):
    """A declaration and the first paragraph of its comment."""

    signature: str
    about: str


def paragraph(lines: list[str]) -> str:
    """The first paragraph of a comment, without the links of rustdoc."""
    text = " ".join(line.strip().removeprefix("///").strip() or "\0" for line in lines).split("\0")[0].strip()
    text = re.sub(r"\[(`[^`]+`)\](\([^)]*\))?", r"\1", text)
    return text.replace("`crate::", "`").replace("`Self::", "`")


def declared(lines: list[str], at: int) -> str:
    """The declaration that begins in this line, in one line and without what follows it."""
    text = ""
    for line in lines[at:]:
        text += " " + line.strip()
        if line.rstrip().endswith(("{", ";", "}")) or "{" in line:
            break
    text = re.split(r"\s*(?:\{|;$|\bwhere\b)", text.strip())[0]
    text = re.sub(r"\(\s+", "(", re.sub(r",?\s*\)", ")", re.sub(r"\s+", " ", text)))
    return text.strip().removeprefix("pub ")


def items(lines: list[str], indent: str, pattern: str) -> list[tuple[re.Match, Item, int]]:
    """The documented items of this indentation whose line has the pattern."""
    found, comment, is_hidden, in_attribute = [], [], False, False
    for at, line in enumerate(lines):
        if line.startswith(f"{indent}///"):
            comment.append(line)
        elif in_attribute or line.startswith(f"{indent}#["):
            is_hidden |= "doc(hidden)" in line
            in_attribute = not line.rstrip().endswith("]")
        else:
            match = re.match(f"{indent}{pattern}", line)
            if match and comment and not is_hidden:
                found.append((match, Item(declared(lines, at), paragraph(comment)), at))
            comment, is_hidden = [], False
    return found


def block(lines: list[str], at: int) -> list[str]:
    """The lines of the braces that open in this line, up to the one that closes them."""
    end = next((index for index in range(at, len(lines)) if lines[index].startswith("}")), at)
    return lines[at + 1 : end]


def read() -> tuple[dict[str, Item], dict[str, list[Item]], dict[str, Item]]:
    """Types, their methods or variants, and functions."""
    types, members, functions = {}, {}, {}
    for path in sorted(SOURCES.rglob("*.rs")):
        part = path.relative_to(SOURCES).parts[0].removesuffix(".rs")
        if part in ("blocking", "no_slices"):
            continue
        prefix = f"{part}::" if part in ("http", "grpc") else ""
        lines = path.read_text().split("\n#[cfg(test)]")[0].splitlines()
        for match, item, at in items(lines, "", r"pub (struct|enum|trait|fn|async fn) (\w+)"):
            kind, name = match.groups()
            if kind.endswith("fn"):
                functions[prefix + name] = item
                continue
            types[prefix + name] = item
            if kind == "enum":
                inner = items(block(lines, at), "    ", r"([A-Z]\w+)")
                members.setdefault(prefix + name, []).extend(Item(match[1], item.about) for match, item, _ in inner)
            elif kind == "struct" and lines[at].rstrip().endswith("{"):
                inner = items(block(lines, at), "    ", r"pub (\w+): (.+),")
                members.setdefault(prefix + name, []).extend(Item(f"{match[1]}: {match[2]}", item.about) for match, item, _ in inner)
        for at, line in enumerate(lines):
            if match := re.match(r"impl(?:<[^>]*>)? ((?:\w+::)*\w+)(?:<[^>]*>)? \{", line):
                owner = match[1] if "::" in match[1] else prefix + match[1]
                methods = items(block(lines, at), "    ", r"pub (?:async )?fn (\w+)")
                more = " With the feature `ndarray`." if part == "arrays" else ""
                members.setdefault(owner, []).extend(item._replace(about=item.about + more) for _, item, _ in methods)
    return types, members, functions


def name_of(item: Item) -> str:
    return item.signature.split("fn ")[1].split("(")[0]


def row(item: Item) -> str:
    return f"| `{item.signature.replace('|', chr(92) + '|')}` | {cell(item.about)} |"


def page() -> str:
    types, members, functions = read()
    parts = [HEAD, "```rust\n", EXAMPLE.read_text().split("\n\n", 2)[2], "```\n"]
    for name in TYPES:
        parts.append(f"\n## `{name}`\n\n{types[name].about}\n")
        found = members.get(name, [])
        if name == "grpc::Client":
            known = {item.signature for item in members["http::Client"]}
            lacks = {name_of(item) for item in members["http::Client"]} - {name_of(item) for item in found}
            found = [item for item in found if item.signature not in known]
            parts.append(f"\nIt has all calls of `http::Client` but {', '.join(f'`{one}`' for one in sorted(lacks))}. These are its own, or differ:\n")
        if found:
            parts.append("\n| | |\n|---|---|\n" + "\n".join(map(row, found)) + "\n")
    parts.append("\n## Functions, modules and types of other crates\n\n| | |\n|---|---|\n")
    parts += [row(functions[name]) + "\n" for name in FUNCTIONS]
    parts += [row(Item(name, about)) + "\n" for name, about in (*MODULES.items(), *OF_OTHERS.items())]
    return "".join(parts)


def exported() -> set[str]:
    """The names that the crate exports, but for modules."""
    text = (SOURCES / "lib.rs").read_text()
    names = " ".join(re.findall(r"^pub use ([^;]+);", text, re.MULTILINE | re.DOTALL))
    return {name for name in re.findall(r"\b(\w+)\b(?!::)", names) if name not in MODULES and not name.startswith("nerite")}


if __name__ == "__main__":
    PAGE.write_text(page())
