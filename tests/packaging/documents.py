"""How are the commands of a page run, and what do they print?

A page is a list of fenced blocks, which run in order, in one shell, in an empty directory:

* ```` ```console ````: a line that begins with ``$ `` is a command, lines that begin with ``> `` go on with it, and what follows is what it prints,
  if the page shows that. ``…`` stands for any text of a line, a line of it alone for any lines. A command must end with 0.
* a block of any other language whose first line is ``# name``, a path with an ending: that file is written.
* ```` ```python ```` without a name: that program is run. One that is shown as in Python's own shell, after ``>>> ``, is run as well.
* a block below ``<!-- stays up -->`` has a command that starts a server. It runs in the background until the page ends, or another such block comes.
* a block of one command of `ELSEWHERE` is passed over, because a test runs the same.
* a block below ``<!-- not run: reason -->`` is passed over. The reason names the test that runs the same, or what that needs (`NEEDS`).
* ```` ```text ```` is no command, so no line of it may begin like one (`PROGRAMS`). A part of a file of settings without a name is none either (`PARTS`).

Anything else would be shown and never run, which is an error.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import servers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# What pages write, and the free port that stands in for it. Three for one server, three for another beside it, one for its page.
PORTS = (8000, 8001, 8002, 9000, 9001, 9002, 8003)
# The objects in /dev/shm that pages make. Each shell has others, because tests of several checkouts may run on one host.
OBJECTS = ("in", "quick", "both", "short", "left")
ANY = "…"
# The languages of settings.
PARTS = ("protobuf", "toml", "ini")
# How a command begins.
PROGRAMS = ("nerite ", "docker ", "cargo ", "pip ", "curl ", "python ")
# Commands that tests run in another way, and by which tests.
ELSEWHERE = {"cargo run --release -- demo": "tests/packaging/test_demo.py", "cargo xtask test": ".ci/run"}
# What a block needs that no test has. The reason goes on with which one.
NEEDS = ("needs another host: ", "needs hardware: ", "needs a registry: ")
# What runs tests, and one of its functions where it is said.
TESTS = re.compile(r"((?:tests|python/tests|crates/\w+/tests)/[\w/]*\w+\.(?:py|rs)|\.ci/run)(?:::(\w+))?")


@dataclasses.dataclass
class Step:
    """A command with what it should print, or a file to write."""

    line: int
    command: str = ""
    expected: list[str] = dataclasses.field(default_factory=list)
    name: str = ""
    text: str = ""


class Unclear(ValueError):
    """A block that nobody would run."""


def steps(page: str) -> list[Step]:
    """What a page asks its reader to do."""
    found: list[Step] = []
    lines = page.splitlines()
    # What the comment above a block says of it.
    comment, at = "", 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("    ") and not lines[at - 1].strip():
            raise Unclear(f"line {at + 1}: an indented block; write ```console or ```text")
        if line.startswith("```"):
            end = lines.index("```", at + 1)
            only = lines[at + 1].removeprefix("$ ") if end == at + 2 else ""
            if only in ELSEWHERE:
                check_reason(ELSEWHERE[only], at)
            elif comment.startswith("not run: "):
                check_reason(comment.removeprefix("not run: "), at)
            else:
                made = steps_of(line.removeprefix("```"), lines[at + 1 : end], at + 2)
                found += [in_background(step) for step in made] if comment == "stays up" else made
            comment, at = "", end
        elif line.strip():
            said = re.fullmatch(r"<!-- (not run: .+|stays up) -->", line)
            comment = said.group(1) if said else ""
        at += 1
    return found


def check_reason(reason: str, line: int) -> None:
    """Refuses a reason that names no test and nothing that tests lack."""
    named = TESTS.findall(reason)
    for place, function in named:
        path = ROOT / place
        if not path.is_file():
            raise Unclear(f"line {line}: there is no {place}")
        if function and not re.search(rf"^\s*(?:def|fn) {function}\b", path.read_text(), re.M):
            raise Unclear(f"line {line}: {place} has no {function}")
    if not named and not reason.startswith(NEEDS):
        raise Unclear(f"line {line}: '{reason}' names no test, and does not begin with one of {NEEDS}")


def in_background(step: Step) -> Step:
    """Starts a server, and ends the one that was started so before it."""
    if step.expected or step.name:
        raise Unclear(f"line {step.line}: what stays up is a command, and its output is not compared")
    command = f"""[ -z "$up" ] || {{ kill $up; wait $up; }}
{step.command} > stays_up.log 2>&1 &
up=$!
while kill -0 $up && ! nerite ready; do sleep 0.1; done 2>/dev/null
nerite ready"""
    return Step(step.line, command=command)


def parts(page: str, language: str) -> list[str]:
    """The parts of files of this language, named or not."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)


def steps_of(language: str, lines: list[str], first: int) -> list[Step]:
    if language == "console":
        return console(lines, first)
    if language == "text":
        for number, line in enumerate(lines, first):
            if line.startswith(PROGRAMS):
                raise Unclear(f"line {number}: a command in a text; write ```console")
        return []
    named = re.fullmatch(r"# ([\w./-]+\.\w+)", lines[0]) if lines else None
    if named:
        return [Step(first, name=named.group(1), text="\n".join(lines) + "\n")]
    if language == "python":
        if lines and lines[0].startswith(">>> "):
            lines = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
        return [Step(first, command="python -c " + quoted("\n".join(lines)))]
    if language in PARTS:
        return []
    raise Unclear(f"line {first - 1}: a block of '{language}' without a file's name in its first line")


def console(lines: list[str], first: int) -> list[Step]:
    found: list[Step] = []
    for number, line in enumerate(lines, first):
        if line.startswith("$ "):
            found.append(Step(number, command=line[2:]))
        elif not found:
            raise Unclear(f"line {number}: an output before the first command")
        elif line.startswith("> ") and not found[-1].expected:
            found[-1].command += "\n" + line[2:]
        else:
            found[-1].expected.append(line)
    return found


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def is_as_shown(expected: list[str], printed: list[str]) -> bool:
    """Whether a command printed what the page shows."""
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line == ANY else ".*".join(re.escape(part) for part in line.split(ANY)) + "\n" for line in expected
    )
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in printed)) is not None


class Shell:
    """A shell in an empty directory, with the program under test, on ports that are free."""

    def __init__(self, program: pathlib.Path, folder: pathlib.Path):
        self.folder = folder
        self.work, self.notes, tools = (folder / name for name in ("work", "steps", "bin"))
        for one in (self.work, self.notes, tools):
            one.mkdir()
        (tools / "nerite").symlink_to(program)
        # It stands in for the Triton that pages speak of. Under that name the program takes Triton's command line.
        peer = tools / "tritonserver"
        peer.write_text(f'#!/bin/bash\nexport NERITE_SESSION_SOCKET=off\nexec -a tritonserver {quoted(str(program))} "$@"\n')
        peer.chmod(0o755)
        ports = dict(zip(PORTS, servers.free_ports(len(PORTS))))
        self.ports = {str(page): str(free) for page, free in ports.items()}
        self.mark = f"-{folder.name}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("NERITE_")}
        self.environment = {
            **clean,
            "PATH": os.pathsep.join([str(tools), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT / "python"),
            "NERITE_BIN": str(program),
            "NERITE_SESSION_SOCKET": str(folder / "session.sock"),
            **{f"NERITE_{name}_ADDRESS": "127.0.0.1" for name in ("HTTP", "GRPC")},
            **{f"NERITE_{name}_PORT": self.ports[str(port)] for name, port in zip(("HTTP", "GRPC", "METRICS"), PORTS)},
        }

    def link(self, name: str, place: pathlib.Path) -> None:
        """Puts something of the sources where the reader of a page has it."""
        (self.work / name).symlink_to(place)

    def moved(self, text: str) -> str:
        """The text with the ports and objects of this shell, and with the program under test where it would be built."""
        text = re.sub(rf"""(?:(?<=["']/)|(?<=shm/))({'|'.join(OBJECTS)})\b""", lambda found: found.group() + self.mark, text)
        text = re.sub(rf"\b({'|'.join(self.ports)})\b", lambda found: self.ports[found.group()], text)
        return text.replace("cargo run --release --", "nerite")

    def run(self, wanted: list[Step], limit_s: float) -> None:
        """Does all steps in order; AssertionError names the first that differs from the page."""
        script = self.folder / "page.sh"
        script.write_text("".join(self.lines(index, step) for index, step in enumerate(wanted)))
        process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", str(script)], cwd=self.work, env=self.environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Its servers too, which belong to its session.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        for index, step in enumerate(wanted):
            self.check(index, step)

    def lines(self, index: int, step: Step) -> str:
        note = self.notes / str(index)
        note.write_text(self.moved(step.text or step.command))
        if step.name:
            return f"mkdir -p {quoted(str(pathlib.PurePath(step.name).parent))} && cp {note} {quoted(step.name)} || exit\n"
        clock = f"echo ${{EPOCHREALTIME/,/.}} >> {note}.times"
        return f"{clock}; . {note} > {note}.out 2>&1; echo $? > {note}.status; {clock}; grep -qx 0 {note}.status || exit\n"

    def seconds(self, wanted: list[Step]) -> dict[int, float]:
        """How long each command took, by its line. Each must have been run."""
        found = {}
        for index, step in enumerate(wanted):
            if step.command:
                began, ended = map(float, pathlib.Path(f"{self.notes / str(index)}.times").read_text().split())
                found[step.line] = ended - began
        return found

    def check(self, index: int, step: Step) -> None:
        if step.name:
            return
        note = self.notes / str(index)
        printed = pathlib.Path(f"{note}.out").read_text() if pathlib.Path(f"{note}.out").exists() else "(never started)"
        status = pathlib.Path(f"{note}.status")
        ended = status.read_text().strip() if status.exists() else "no status in time"
        about = f"line {step.line}: {step.command}\nended with {ended} and printed:\n{printed}"
        assert ended == "0", about + self.logs()
        expected = self.moved("\n".join(step.expected)).splitlines()
        assert not expected or is_as_shown(expected, printed.splitlines()), about + "\nthe page shows:\n" + "\n".join(expected)

    def logs(self) -> str:
        return "".join(f"\n{one.name}:\n{one.read_text()[-2000:]}" for one in sorted(self.work.glob("*.log")))

    def close(self) -> None:
        for name in OBJECTS:
            pathlib.Path(f"/dev/shm/{name}{self.mark}").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
