"""How does a module offer every name of another one?"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable


def adopt(namespace: dict[str, Any], origin: ModuleType) -> None:
    """Puts the public names of ``origin`` that ``namespace`` does not have itself into it."""
    for name in dir(origin):
        if not name.startswith("_"):
            namespace.setdefault(name, getattr(origin, name))


def fallback(module: str, origin: ModuleType) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that looks in ``origin``: for names that come into being later, such as submodules."""

    def find(name: str) -> Any:
        try:
            return getattr(origin, name)
        except AttributeError:
            raise AttributeError(f"module '{module}' has no attribute '{name}'") from None

    return find
