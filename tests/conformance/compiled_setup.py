"""How do tests build a compiled backend, and serve its models?"""

import contextlib
import os
import pathlib
import subprocess

from servers import ROOT

SOURCES = ROOT / "tests" / "backends"
FLAGS = ["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]

TENSOR = '{ name: "%s" data_type: TYPE_%s dims: [ -1 ] }'


def compiled(library: pathlib.Path, needs: str = "", source: str = "sample", flags: tuple[str, ...] = ()) -> pathlib.Path:
    """A source of tests/backends as a library, which needs one of this name, or finds the interface in its process."""
    library.parent.mkdir(parents=True, exist_ok=True)
    link = []
    if needs:
        beside = library.parent / "only_to_link"
        beside.mkdir(exist_ok=True)
        empty = ["cc", "-shared", "-x", "c", "/dev/null", "-o", str(beside / needs), f"-Wl,-soname,{needs}"]
        subprocess.run(empty, check=True)
        link = ["-Wl,--no-as-needed", str(beside / needs)]
    subprocess.run(["cc", *FLAGS, *flags, str(SOURCES / f"{source}.c"), "-o", str(library), *link, "-lpthread"], check=True)
    return library


def put(repository: pathlib.Path, name: str, mode: str = "", datatype: str = "FP32", pairs: int = 1, more: str = "",
        backend: str = "sample", **parameters: str) -> pathlib.Path:  # fmt: skip
    """A model with inputs IN, IN1, … and outputs OUT, OUT1, …"""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    numbers = ["", *map(str, range(1, pairs))]
    lines = [f'backend: "{backend}"', more]
    for side, stem in (("input", "IN"), ("output", "OUT")):
        lines.append(f"{side} [" + ", ".join(TENSOR % (stem + number, datatype) for number in numbers) + "]")
    for key, value in ({"mode": mode} | parameters).items():
        lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n")
    return folder


@contextlib.contextmanager
def serving(launcher, name: str, repository: pathlib.Path, *flags: str, needs: str = "", sources: tuple[str, ...] = ("sample",)):
    """A server that finds these backends in its directory."""
    backends = launcher.scratch / f"{name}_backends"
    for source in sources:
        library = backends / source / f"libtriton_{source}.so"
        if not library.exists():
            compiled(library, needs, source)
    with launcher.running(name, f"--backend-directory={backends}", *flags, repository=repository) as found:
        yield found


def workers_of(server) -> list[int]:
    """The processes of a server's isolated instances."""
    children = set()
    for task in pathlib.Path(f"/proc/{server.pid}/task").iterdir():
        with contextlib.suppress(OSError):
            children |= set(map(int, (task / "children").read_text().split()))
    return sorted(pid for pid in children if comm_of(pid) == "nerite-worker")


def comm_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


@contextlib.contextmanager
def environment(**values: str):
    """Changes variables of this process, which servers inherit."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key)
            else:
                os.environ[key] = value


def errors(server) -> list[str]:
    """What the log says of errors."""
    return [line for line in server.log_text().splitlines() if line.startswith("E")]
