"""Starts nerite and the real Triton 2.51 side by side, for tests that ask both the same."""

import contextlib
import pathlib
import shutil

import pytest
import servers
import triton


@contextlib.contextmanager
def both_servers(launcher, repository: pathlib.Path, *flags: str):
    """nerite and Triton, each over its own copy of the repository."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("starts both servers itself")
    if not triton.is_installed():
        pytest.skip("Triton is not installed: cargo xtask oracle")
    copy = repository.with_name(f"{repository.name}_triton")
    shutil.copytree(repository, copy)
    command, environment = triton.command(copy, launcher.scratch)
    log = launcher.scratch / f"{copy.name}.log"
    with launcher.running(repository.name, *flags, repository=repository) as ours:
        theirs = servers.start(command, environment, list(flags), log, oracle=True, repository=copy)
        try:
            yield ours, theirs
        finally:
            servers.stop(theirs)


def check_same(forms: dict, answer_of, pair, differ: dict[str, str]) -> None:
    """Sends each form to both servers, and checks that they answer alike but for forms that begin as a row of `differ`, each with its reason."""
    found = {}
    for name, form in forms.items():
        try:
            answers = [answer_of(one, form) for one in pair]
        except OSError as error:
            raise AssertionError(f"a server ended at {name}") from error
        if answers[0] != answers[1]:
            found[name] = answers
    surprises = {name: answers for name, answers in found.items() if not name.startswith(tuple(differ))}
    listing = "\n".join(f"{name}:\n  nerite {ours}\n  Triton {theirs}" for name, (ours, theirs) in surprises.items())
    assert not surprises, f"{len(surprises)} of {len(forms)} forms get different answers:\n{listing}"
    idle = [row for row in differ if not any(name.startswith(row) for name in found)]
    assert not idle, f"these rows have no form that is answered differently: {idle}"
