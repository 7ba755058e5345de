"""Are requests traced that a backend in C makes of others, and what it reports itself?"""

import pytest
from clients import fp32, open_client
from compiled_setup import put, serving
from test_tracing import CORE, Traced


@pytest.fixture(scope="module")
def traced(launcher, tmp_path_factory):
    repository = launcher.scratch / "compiled_tracing"
    put(repository, "asking", backend="asking")
    put(repository, "c_identity")
    folder = tmp_path_factory.mktemp("compiled_traces")
    flags = [f"--trace-config=triton,file={folder}/trace.json", "--trace-config=triton,log-frequency=1",
             "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]  # fmt: skip
    with serving(launcher, "compiled_tracing", repository, *flags, sources=("sample", "asking")) as found:
        yield Traced(found, folder)


def points(notes: list[dict], number: int) -> list[str]:
    found = [(one["ns"], one["name"]) for note in notes if note["id"] == number for one in note.get("timestamps", [])]
    return [name for _, name in sorted(found, key=lambda pair: pair[0])]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_a_backend_asks_and_reports_is_in_the_trace(traced, protocol):
    with open_client(protocol, traced.server) as client:
        client.infer("asking", [fp32("IN", [1])], parameters={"target": "c_identity", "wait": 1}, id="mine")
    notes = traced.next()
    begins = {note["model_name"]: note for note in notes if "model_name" in note}
    outer, inner = begins["asking"], begins["c_identity"]
    assert inner["parent_id"] == outer["id"] and "parent_id" not in outer
    assert set(CORE) <= set(points(notes, inner["id"]))
    assert "ASKING_ANOTHER_MODEL" in points(notes, outer["id"]), notes
    assert "ASKING_ANOTHER_MODEL" not in points(notes, inner["id"])
    assert "trace of asking 1 request 'mine' id 1 parent 0 context ''" in traced.server.log_text()
