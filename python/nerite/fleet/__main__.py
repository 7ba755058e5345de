"""What does `nerite fleet` do with its arguments?"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import Any, Dict, Iterator, List, Optional, TextIO

from nerite.fleet import FleetError, _operate


def main(words: Optional[List[str]] = None) -> int:
    """Runs one command. Returns its exit status."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["fetch"]:
        from nerite.fleet import _bucket

        return _bucket.main(words[1:])
    given = _parser().parse_args(words)
    try:
        with _own_output() as output:
            print(given.run(given), end="", file=output)
    except FleetError as error:
        print(f"nerite fleet: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"nerite fleet: {error}: pip install nerite[fleet]", file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001 - those of Ray, which may not be installed
        if not type(error).__module__.startswith("ray."):
            raise
        print(f"nerite fleet: Ray: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("nerite fleet: interrupted; the fleet goes on: see `nerite fleet status`", file=sys.stderr)
        return 130
    return 0


@contextlib.contextmanager
def _own_output() -> Iterator[TextIO]:
    """The standard output. What Ray prints there until the end of the process goes to the standard error."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(own), "w", encoding="utf-8") as output:
            yield output
    finally:
        os.close(own)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nerite fleet", description="Replicas of nerite on a Ray cluster, behind an Envoy on each node.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, what in (("up", _up, "start a fleet, or give it new settings"), ("roll", _roll, "replace its replicas one at a time")):
        command = _command(commands, name, run, what)
        command.add_argument("file", help="the fleet, as YAML")
        _wait_option(command)
    command = _command(commands, "status", _show, "show replicas and proxies")
    command.add_argument("name", help="the fleet's name")
    command.add_argument("--json", action="store_true", help="as JSON")
    command = _command(commands, "down", _down, "stop a fleet after its requests")
    command.add_argument("name", help="the fleet's name")
    _wait_option(command)
    command = commands.add_parser("fetch", help="copy a model repository from a bucket")
    return parser


def _command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, run: object, what: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    command.set_defaults(run=run)
    command.add_argument("--address", help="the Ray cluster, of which this host is a node; by default the one that runs here")
    return command


def _wait_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--within", type=float, metavar="SECONDS", help="fail if it takes longer; the fleet goes on all the same")


def _up(given: argparse.Namespace) -> str:
    return _lines(_operate.up(given.file, address=given.address, within_s=given.within))


def _roll(given: argparse.Namespace) -> str:
    return _lines(_operate.roll(given.file, address=given.address, within_s=given.within))


def _show(given: argparse.Namespace) -> str:
    shown = _operate.status(given.name, address=given.address)
    return json.dumps(shown, indent=1) + "\n" if given.json else _lines(shown)


def _down(given: argparse.Namespace) -> str:
    _operate.down(given.name, address=given.address, within_s=given.within)
    return ""


def _lines(shown: Dict[str, Any]) -> str:
    return "".join(f"{line}\n" for line in _operate.table(shown))


if __name__ == "__main__":
    sys.exit(main())
