"""Where do links of the documentation to files outside of docs/ lead in the site that mdbook makes?

They lead to the repository, because these files are not part of the site. `book.toml` names this program as a preprocessor: mdbook gives it the
book as JSON on standard input, and reads the changed book from standard output.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from typing import Any, Iterator

# A link that leads up: its target, without what follows a space or the bracket.
OUTWARD = re.compile(r"\]\((\.\./[^)\s]*)")


def chapters(book: Any) -> Iterator[dict[str, Any]]:
    """All chapters of a book, with those below them."""
    if isinstance(book, list):
        for one in book:
            yield from chapters(one)
    elif isinstance(book, dict):
        if isinstance(book.get("content"), str):
            yield book
        for one in book.values():
            yield from chapters(one)


def rewritten(page: str, folder: str, repository: str) -> str:
    """The page, which lies in ``folder`` of the repository. Links that lead out of ``docs`` begin with the repository's address."""

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match.group(1)))
        return match.group(0) if path.startswith("docs/") else f"]({repository}/{path}"

    return OUTWARD.sub(target, page)


def main() -> None:
    if sys.argv[1:2] == ["supports"]:
        return
    context, book = json.load(sys.stdin)
    repository = context["config"]["preprocessor"]["book_links"]["repository"]
    for chapter in chapters(book):
        folder = posixpath.join("docs", posixpath.dirname(chapter.get("path") or ""))
        chapter["content"] = rewritten(chapter["content"], folder, repository)
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
