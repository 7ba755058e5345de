"""When did the server do what for each request, by its own clock? A test that is held up sees answers late and in any order."""

import json
import pathlib
import time


def tracing(folder: pathlib.Path) -> list[str]:
    """Flags of a server that notes the times of each request there, in a file of its own."""
    folder.mkdir(exist_ok=True)
    return [f"--trace-config=triton,file={folder / 'trace.json'}", "--trace-config=triton,log-frequency=1",
            "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]  # fmt: skip


def times_of(folder: pathlib.Path, wanted: set[str]) -> dict[str, dict[str, int]]:
    """The first time of each name by the ids of requests that have ended, once all that are `wanted` are there. The clock is that of `time.monotonic_ns`."""
    deadline = time.monotonic() + 60
    while not wanted <= (found := noted(folder)).keys():
        assert time.monotonic() < deadline, f"no times of {wanted - found.keys()}"
        time.sleep(0.05)
    return found


def noted(folder: pathlib.Path) -> dict[str, dict[str, int]]:
    found = {}
    for path in folder.glob("trace.json*"):
        text = path.read_text()
        # Another one is being written.
        notes = json.loads(text) if text.endswith("]") else []
        times = [(one["name"], one["ns"]) for note in notes for one in note.get("timestamps", [])]
        for name in {note["request_id"] for note in notes if "request_id" in note}:
            found[name] = dict(sorted(times, key=lambda one: -one[1]))
    return found
