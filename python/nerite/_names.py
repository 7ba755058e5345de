"""How does a module re-export every name of another one?"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Callable, TypeVar

Passed = TypeVar("Passed", bound=Callable[..., Any])


def passing(theirs: Callable[..., Any], *more: str) -> Callable[[Passed], Passed]:
    """Decorates a method that passes its arguments to ``theirs``: ``help`` and editors show the parameters of that method.

    ``more`` are the method's own additional parameters.
    """

    def dress(ours: Passed) -> Passed:
        own = inspect.signature(ours).parameters
        signature = inspect.signature(theirs)
        shown = [*signature.parameters.values(), *(own[name] for name in more)]
        ours.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        ours.__doc__ = f"{inspect.cleandoc(ours.__doc__ or '')}\n\n{inspect.cleandoc(theirs.__doc__ or '')}".strip()
        return ours

    return dress


def adopt(namespace: dict[str, Any], origin: ModuleType) -> None:
    """Adds the public names of ``origin`` to ``namespace``, except those that it has already."""
    for name in dir(origin):
        if not name.startswith("_"):
            namespace.setdefault(name, getattr(origin, name))


def fallback(module: str, origin: ModuleType) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that looks in ``origin``, for names that are defined later, such as submodules."""

    def find(name: str) -> Any:
        try:
            return getattr(origin, name)
        except AttributeError:
            raise AttributeError(f"module '{module}' has no attribute '{name}'") from None

    return find
