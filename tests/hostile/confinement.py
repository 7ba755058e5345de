"""How is a server started that may have little memory?"""

import contextlib
import os
import pathlib
import time

import pytest
import servers
from holding import MODEL

ADDRESS_SPACE_BYTES = 900_000 << 10
GROUP_BYTES = 512 << 20


@contextlib.contextmanager
def confined(launcher, tmp_path, *before: str, repository=None, flags=("--session-socket=off", "--http-max-input-size=1000000000")):
    """A server whose command line begins with these words. Without a repository it serves the identity model alone."""
    if launcher.oracle:
        pytest.skip("2.51 does not start in so little memory")
    repository = repository or launcher.copy_of(f"confined_{tmp_path.name}", MODEL)
    command, environment = servers.nerite_command(repository)
    server = servers.start([*before, *command], environment, list(flags), tmp_path / "log", oracle=False, repository=repository)
    try:
        yield server
    finally:
        servers.stop(server)


@contextlib.contextmanager
def control_group():
    """A group of this process's own with little memory, and the command that puts a program into it."""
    own = {line.split(":")[1]: line.split(":", 2)[2] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()}
    places = [
        (pathlib.Path("/sys/fs/cgroup/memory" + own.get("memory", "")), "memory.limit_in_bytes"),
        (pathlib.Path("/sys/fs/cgroup" + own.get("", "")), "memory.max"),
    ]
    for parent, limit in places:
        group = parent / f"nerite-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(GROUP_BYTES))
            yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
            return
        except OSError:
            continue
        finally:
            deadline = time.monotonic() + 20
            while group.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    group.rmdir()
                time.sleep(0.1)
    pytest.skip("no control group can be made here")
