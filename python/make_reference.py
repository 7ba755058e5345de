"""What does the API reference of the Python package say? Written to docs/clients.md from the docstrings.

    .venv/bin/python python/make_reference.py           # writes the page
    .venv/bin/python -m pytest python/tests/test_reference.py   # fails if it is not current
"""

import importlib
import inspect
import pathlib
import re
import sys
import types
from typing import Any, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
PAGE = ROOT / "docs" / "clients.md"
MODULES = ("nerite", "nerite.http", "nerite.http.aio", "nerite.grpc", "nerite.grpc.aio", "nerite.shm", "nerite.testing.shm_util")
# Classes whose objects a program gets from a call.
MADE_BY_OTHERS = ("nerite.Client", "nerite.Model", "nerite.Response", "nerite.Server", "nerite.http.TensorBuffer")
# Methods without an underscore that are for other classes of the package.
INTERNAL = {
    "InferResult": ("of", "unsettled"),
}
HEAD = """# Clients: API reference

<!-- Written by python/make_reference.py from the docstrings; a test fails if it is not current. -->

This page is for programmers who look up a call: it lists every public class and function of the Python package.

- [Python](#python): the package `nerite` ([what it is for](../python/README.md)), in the distributions `nerite` and `nerite-client`
- [Rust](#rust): the crate `nerite-client`

## Python

Names that begin with an underscore are private. For `nerite.http` and `nerite.grpc`, this page lists only names that `tritonclient` lacks or that differ from it. All other
names are `tritonclient`'s own.
"""
TAIL = """
## Rust

[The Rust client](rust-client.md) lists its types, methods and errors. The documentation of the crate says more of each, with examples that the tests compile. In a checkout:

<!-- not run: .ci/run makes it, and opens no browser -->
```console
$ cargo doc -p nerite-client --no-deps --open
```

| to | look at |
|---|---|
| ask over HTTP or gRPC | `nerite_client::http::Client`, `nerite_client::grpc::Client` |
| borrow memory and ask over a session | `nerite_client::Session` |
| see it work | [`crates/client/examples`](../crates/client/examples), [`crates/client/README.md`](../crates/client/README.md) |
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    seen: dict[Any, str] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        parts.append(f"\n### `{name}`\n\n{paragraphs(module)[0]}\n")
        for one in own_names(module):
            parts.append(entry(f"{name}.{one}", getattr(module, one), seen))
    return "".join(parts) + TAIL


def own_names(module: types.ModuleType) -> list[str]:
    """The public names of a module that are defined in this package."""
    listed = getattr(module, "__all__", None)
    names = listed or [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return sorted((name for name in set(names) if name[0] != "_" and is_ours(getattr(module, name))), key=str.lower)


def is_ours(value: Any) -> bool:
    return callable(value) and (getattr(value, "__module__", "") or "").split(".")[0] == "nerite"


def entry(name: str, value: Any, seen: dict[Any, str]) -> str:
    """A class with its public methods, or a function."""
    if value in seen:
        return f"\n**class `{name}`** is `{seen[value]}`.\n"
    seen[value] = name
    if not inspect.isclass(value):
        return f"\n**`{name}{signature(value)}`**\n\n{body(value)}\n"
    made = "" if name in MADE_BY_OTHERS or issubclass(value, Exception) else signature(value)
    rows = "".join(f"| `{title}` | {summary} |\n" for title, summary in members(name, value))
    table = f"\n| | |\n|---|---|\n{rows}" if rows else ""
    return f"\n**class `{name}{made}`**\n\n{body(value)}\n{table}"


def members(name: str, value: type) -> Iterator[tuple[str, str]]:
    """What a class and its bases in this package offer."""
    found: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        if base.__module__.split(".")[0] == "nerite":
            found.update({one: what for one, what in vars(base).items() if one[0] != "_" or one == "__call__"})
    for one, what in sorted(found.items()):
        is_method = inspect.isfunction(what) or isinstance(what, (property, classmethod, staticmethod))
        if not is_method or one in INTERNAL.get(name.rpartition(".")[2], ()):
            continue
        summary = cell(paragraphs(what)[0].replace("\n", " "))
        if isinstance(what, property):
            yield one, summary
        elif isinstance(what, (classmethod, staticmethod)):
            yield one + signature(getattr(value, one)), summary
        else:
            yield "model" * (one == "__call__") + one.replace("__call__", "") + signature(what, skip_self=True), summary


def cell(text: str) -> str:
    """The first sentence of a text, and further ones while a reader of a table reads them: at most 25 words."""
    kept = ""
    for sentence in re.split(r"(?<=\.)\s+(?=[A-Z`])", text):
        if kept and len(f"{kept} {sentence}".split()) > 25:
            break
        kept = f"{kept} {sentence}".strip()
    return kept.replace("|", "\\|")


def signature(value: Any, skip_self: bool = False) -> str:
    """The parameters, without annotations: the texts say what is taken. What is as tritonclient's has tritonclient's."""
    if paragraphs(value)[0].startswith("As tritonclient's"):
        return "(…)"
    found = inspect.signature(value)
    given = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values()]
    return str(found.replace(parameters=given[1:] if skip_self else given, return_annotation=inspect.Signature.empty))


def paragraphs(value: Any) -> list[str]:
    """The docstring's paragraphs, as Markdown."""
    found = inspect.cleandoc(value.__doc__ or "")
    if not found:
        raise ValueError(f"{value} says nothing about itself")
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", found).replace("``", "`").split("\n\n")


def body(value: Any) -> str:
    return "\n\n".join(paragraph(one) for one in paragraphs(value))


def paragraph(text: str) -> str:
    """An example as code, and a section of parameters as a list."""
    if text.startswith(">>> "):
        # A test of the documentation runs it.
        return f"```python\n{text}\n```"
    heading, _, rest = text.partition("\n")
    ruler, _, rows = rest.partition("\n")
    if not re.fullmatch("-{3,}", ruler):
        return text
    entries = re.findall(r"^(\S.*)\n((?: +.*\n?)+)", rows, re.M)
    listed = (f"- `{name}`: {' '.join(about.split())}" for name, about in entries)
    return f"{heading}:\n\n" + "\n".join(listed)


def main() -> None:
    PAGE.write_text(page())
    print(f"{PAGE} is written")


if __name__ == "__main__":
    main()
