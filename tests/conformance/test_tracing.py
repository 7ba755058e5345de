"""Does a trace file say of each request what Triton's says?"""

import collections
import json
import os
import re
import time

import numpy as np
import pytest
import servers
from clients import differs, fp32, grpc_channel, grpc_refuses, http_call, open_client, pb, service_stub
from python_setup import PATIENT
from test_ensembles import put_ensemble, put_part

PLUS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        BODY
        values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value + 1)]) for value in values]
"""
CALLING_MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.ask(request).output_tensors()) for request in requests]

    def ask(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN")
        return pb_utils.InferenceRequest(model_name="plus", inputs=[given], requested_output_names=["OUT"]TRACE).exec()
"""
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
CORE = ["REQUEST_START", "QUEUE_START", *COMPUTE, "REQUEST_END"]
HTTP = ["HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]
PATIENCE_S = 60


@pytest.fixture(scope="module")
def repository(launcher):
    made = launcher.copy_of("tracing")
    put_part(made, "plus", PLUS)
    put_part(made, "fails", PLUS.replace("BODY", 'raise ValueError("no luck")'))
    put_part(made, "asks", CALLING_MODEL.replace("TRACE", ", trace=request.trace()"))
    put_part(made, "asks_untraced", CALLING_MODEL.replace("TRACE", ""))
    put_ensemble(made, "both", "plus IN=IN OUT=MID", "plus IN=MID OUT=OUT")
    return made


class Traced:
    """A server whose traces go to a folder, one file for each trace."""

    def __init__(self, server, folder):
        self.server, self.folder, self.seen = server, folder, set()

    def files(self):
        return {path for path in self.folder.iterdir() if path.name.startswith("trace.json")}

    def next(self) -> list[dict]:
        """The notes of the next trace, once it is whole: its last note comes with the last byte of the answer."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for path in sorted(self.files() - self.seen):
                text = path.read_text()
                if text.endswith("]") and text != "[]":
                    self.seen.add(path)
                    return json.loads(text)
            time.sleep(0.02)
        raise AssertionError("no trace came")

    def infer(self, protocol: str, model: str, **more):
        with open_client(protocol, self.server) as client:
            return client.infer(model, [fp32("IN", [1.0, 2.5])], **more)


@pytest.fixture(scope="module")
def traced(launcher, repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    flags = ["--trace-config=triton,file=%s" % (folder / "trace.json"), "--trace-config=triton,log-frequency=1",
             "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS"]  # fmt: skip
    with launcher.running("tracing", PATIENT, *flags, repository=repository) as server:
        yield Traced(server, folder)


def by_request(notes: list[dict]) -> dict[int, list[dict]]:
    found = collections.defaultdict(list)
    for note in notes:
        found[note["id"]].append(note)
    return dict(found)


def points(notes: list[dict]) -> list[str]:
    return [one["name"] for note in notes for one in note.get("timestamps", [])]


def times(notes: list[dict]) -> dict[str, int]:
    return {one["name"]: one["ns"] for note in notes for one in note.get("timestamps", [])}


def begin(notes: list[dict]) -> dict:
    (only,) = [note for note in notes if "model_name" in note]
    return only


def tensors(notes: list[dict]) -> list[tuple[str, dict]]:
    return [(note["activity"], note["tensor"]) for note in notes if "activity" in note]


@pytest.mark.parametrize(("protocol", "front"), [("http", HTTP), ("grpc", GRPC)])
def test_a_request_is_traced_from_its_first_byte_to_the_last_of_its_answer(traced, protocol, front):
    traced.infer(protocol, "plus", id="mine")
    notes = traced.next()
    assert sorted(points(notes)) == sorted(CORE + front)
    fields = begin(notes)
    assert fields == {"id": fields["id"], "model_name": "plus", "model_version": 1, "request_id": "mine"}
    at = times(notes)
    # Triton may send before it notes the end of the computation.
    for order in ([*front[:2], *CORE[:6]], ["COMPUTE_OUTPUT_START", *front[3:]]):
        assert [at[name] for name in order] == sorted(at[name] for name in order), at
    tensor = {"name": "IN", "data": "1,2.5", "shape": "2", "dtype": "FP32"}
    made = {"name": "OUT", "data": "2,3.5", "shape": "2", "dtype": "FP32"}
    assert tensors(notes) == [("TENSOR_QUEUE_INPUT", tensor), ("TENSOR_BACKEND_OUTPUT", made)]


def test_the_steps_of_an_ensemble_are_requests_below_it(traced):
    traced.infer("http", "both", id="mine")
    requests = by_request(traced.next())
    top = [number for number, notes in requests.items() if "parent_id" not in begin(notes)]
    assert len(top) == 1 and len(requests) == 3
    assert sorted(points(requests[top[0]])) == sorted(["REQUEST_START", "QUEUE_START", "REQUEST_END", *HTTP])
    steps = [requests[number] for number in requests if number not in top]
    for notes in steps:
        fields = begin(notes)
        assert (fields["model_name"], fields["parent_id"], fields["request_id"]) == ("plus", top[0], "mine")
        assert sorted(points(notes)) == sorted(CORE)


def test_a_request_that_a_model_makes_with_its_trace_is_below_it(traced):
    traced.infer("http", "asks")
    requests = by_request(traced.next())
    parents = {begin(notes)["model_name"]: begin(notes).get("parent_id") for notes in requests.values()}
    caller = next(number for number, notes in requests.items() if begin(notes)["model_name"] == "asks")
    assert parents == {"asks": None, "plus": caller}


def test_a_request_that_a_model_makes_without_it_is_not_traced(traced):
    traced.infer("http", "asks_untraced")
    (notes,) = by_request(traced.next()).values()
    assert begin(notes)["model_name"] == "asks_untraced"


def test_a_request_that_fails_is_traced_to_its_end(traced):
    with pytest.raises(Exception, match="no luck"):
        traced.infer("http", "fails")
    notes = traced.next()
    assert sorted(points(notes)) == sorted(CORE + HTTP)
    assert [activity for activity, _ in tensors(notes)] == ["TENSOR_QUEUE_INPUT"]


def test_requests_of_a_stream_are_traced_one_by_one(traced):
    request = pb.ModelInferRequest(model_name="plus", id="streamed")
    request.inputs.add(name="IN", datatype="FP32", shape=[2])
    request.raw_input_contents.append(np.array([1, 2], np.float32).tobytes())
    with grpc_channel(traced.server.grpc) as channel:
        answers = list(service_stub(channel).ModelStreamInfer(iter([request, request])))
    assert [answer.error_message for answer in answers] == ["", ""]
    for _ in answers:
        notes = traced.next()
        assert begin(notes)["request_id"] == "streamed"
        assert sorted(points(notes)) == sorted(CORE + GRPC)


@differs("2.51 writes such an id as it is, and the file is no JSON")
def test_the_file_stays_json_whatever_a_client_calls_its_request(traced):
    traced.infer("http", "plus", id='a "quoted\\ name')
    assert begin(traced.next())["request_id"] == 'a "quoted\\ name'


def change(server, body, path="/v2/trace/setting"):
    return http_call(server.http, "POST", path, body)


@pytest.fixture(scope="module")
def plain(launcher, repository, tmp_path_factory):
    """A server that could trace, and does not yet."""
    folder = tmp_path_factory.mktemp("plain")
    flags = [f"--trace-config=triton,file={folder / 'trace.json'}", "--trace-config=rate=1"]
    with launcher.running("tracing_plain", PATIENT, *flags, repository=repository) as server:
        yield Traced(server, folder)


def test_tracing_begins_and_ends_while_the_server_runs(plain):
    plain.infer("http", "plus")
    change(plain.server, {"trace_level": ["TIMESTAMPS"], "log_frequency": "1"}).ok()
    plain.infer("http", "plus", id="seen")
    notes = plain.next()
    assert begin(notes)["request_id"] == "seen" and not tensors(notes)
    change(plain.server, {"trace_level": None, "log_frequency": None}).ok()
    plain.infer("http", "plus", id="unseen")
    time.sleep(0.2)
    assert plain.files() == plain.seen


def test_words_that_are_no_level_leave_it_as_it_is(plain):
    levels = lambda body: change(plain.server, body).ok().json["trace_level"]
    assert levels({"trace_level": ["TENSORS"]}) == ["TENSORS"]
    assert levels({"trace_level": ["NO_SUCH_LEVEL"]}) == levels({"trace_level": []}) == ["TENSORS"]
    assert levels({"trace_level": ["NO_SUCH_LEVEL", "TIMESTAMPS"]}) == ["TIMESTAMPS"]
    with grpc_channel(plain.server.grpc) as channel:
        request = pb.TraceSettingRequest()
        request.settings["trace_level"].value.append("tensors")
        found = service_stub(channel).TraceSetting(request).settings["trace_level"].value
    assert list(found) == ["TIMESTAMPS"]
    assert levels({"trace_level": None}) == ["OFF"]


def test_one_of_so_many_requests_is_traced_until_the_count_is_used_up(plain):
    change(plain.server, {"trace_level": ["TIMESTAMPS"], "log_frequency": "1", "trace_rate": "2", "trace_count": "2"}).ok()
    for number in range(1, 8):
        plain.infer("http", "plus", id=str(number))
    assert [begin(plain.next())["request_id"] for _ in range(2)] == ["2", "4"]
    found = http_call(plain.server.http, "GET", "/v2/trace/setting").ok().json
    assert found["trace_count"] == "0" and plain.files() == plain.seen
    cleared = change(plain.server, {"trace_level": None, "log_frequency": None, "trace_rate": None, "trace_count": None}).ok().json
    assert (cleared["trace_level"], cleared["trace_rate"], cleared["trace_count"]) == (["OFF"], "1", "-1")


def test_a_model_may_be_traced_alone(plain):
    path = "/v2/models/plus/trace/setting"
    change(plain.server, {"trace_level": ["TIMESTAMPS"], "log_frequency": "1"}, path).ok()
    plain.infer("http", "both", id="not_this")
    plain.infer("http", "plus", id="this")
    assert begin(plain.next())["request_id"] == "this"
    change(plain.server, {"trace_level": None, "log_frequency": None}, path).ok()
    assert plain.files() == plain.seen


def request_ids(path) -> list[str]:
    """Of the requests whose traces are in the file."""
    try:
        return [note["request_id"] for note in json.loads(path.read_text()) if "model_name" in note]
    except json.JSONDecodeError:
        return []


def test_each_file_has_as_many_traces_as_the_frequency_says(plain):
    change(plain.server, {"trace_level": ["TIMESTAMPS"], "log_frequency": "2"}).ok()

    def found() -> list[list[str]]:
        fresh = sorted(plain.files() - plain.seen, key=lambda path: int(path.suffix[1:]))
        return [request_ids(path) for path in fresh]

    for number in range(5):
        plain.infer("http", "plus", id=str(number))
        # The next request begins when the trace of this one is written.
        deadline = time.monotonic() + PATIENCE_S
        while sum(map(len, found())) <= number and time.monotonic() < deadline:
            time.sleep(0.02)
    assert found() == [["0", "1"], ["2", "3"], ["4"]]
    plain.seen |= plain.files()
    change(plain.server, {"trace_level": None, "log_frequency": None}).ok()


WITHOUT_A_FILE = "Attempting to set invalid trace setting :trace file name is not given"


@pytest.mark.parametrize("model", ["", "identity_fp32"])
def test_a_level_without_a_file_is_refused_over_grpc(server, model):
    request = pb.TraceSettingRequest(model_name=model)
    request.settings["trace_level"].value.append("TIMESTAMPS")
    with grpc_channel(server.grpc) as channel:
        stub = service_stub(channel)
        with grpc_refuses("INVALID_ARG", WITHOUT_A_FILE):
            stub.TraceSetting(request)
        assert list(stub.TraceSetting(pb.TraceSettingRequest(model_name=model)).settings["trace_level"].value) == ["OFF"]


def test_a_level_of_the_command_line_without_a_file_is_shown_and_traces_nothing(launcher, repository):
    """As in Triton. That nothing is traced is in the log."""
    with launcher.running("tracing_no_file", PATIENT, "--trace-config=level=TIMESTAMPS", "--session-socket=off", repository=repository) as server:
        if not launcher.oracle:
            assert "nothing is traced: Attempting to set invalid trace setting :trace file name is not given" in server.log_text()
        found = http_call(server.http, "GET", "/v2/trace/setting").ok().json
        assert (found["trace_level"], found["trace_file"]) == (["TIMESTAMPS"], "")
        with open_client("http", server) as client:
            client.infer("plus", [fp32("IN", [1.0, 2.5])])


def test_what_could_trace_nothing_is_refused(server, plain):
    for path in ("/v2/trace/setting", "/v2/models/identity_fp32/trace/setting"):
        change(server, {"trace_level": ["TIMESTAMPS"]}, path).refused("INVALID_ARG", WITHOUT_A_FILE)
        assert http_call(server.http, "GET", path).ok().json["trace_level"] == ["OFF"]
    refused = change(plain.server, {"trace_level": ["TIMESTAMPS"], "trace_rate": "0"})
    refused.refused("INVALID_ARG", "Attempting to set invalid trace setting :sample rate must be non-zero")
    assert change(plain.server, {"trace_rate": None}).ok().json["trace_level"] == ["OFF"]


@differs("2.51 writes the file when the settings change or the server ends, and then not always")
def test_without_a_frequency_all_go_to_one_file_which_is_json_at_once(launcher, repository, tmp_path):
    path = tmp_path / "trace.json"
    flags = [f"--trace-config=triton,file={path}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]
    with launcher.running("tracing_one_file", PATIENT, *flags, repository=repository) as server:
        traced = Traced(server, tmp_path)
        for number in range(3):
            traced.infer("http", "plus", id=str(number))
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and (not path.exists() or path.read_text().count("HTTP_SEND_END") < 3):
            time.sleep(0.02)
        assert len(by_request(json.loads(path.read_text()))) == 3
        traced.infer("http", "plus", id="last")
        assert servers.stop(server) == 0
    assert len(by_request(json.loads(path.read_text()))) == 4


def test_a_fifo_in_the_place_of_the_file_costs_traces_and_nothing_else(launcher, repository, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 waits for a reader")
    path = tmp_path / "trace.json"
    os.mkfifo(path)
    flags = [f"--trace-config=triton,file={path}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]
    reason = "it is a FIFO; name a regular file, or a path where there is nothing"
    with launcher.running("traced_fifo", PATIENT, *flags, repository=repository) as server:
        assert f"traces cannot be written: '{path}': {reason}" in server.log_text()
        with open_client("http", server) as client:
            for _ in range(3):
                client.infer("plus", [fp32("IN", [1.0])])

        def dropped() -> int:
            page = http_call(server.metrics, "GET", "/metrics").ok().body.decode()
            return int(re.search(r'^nerite_traces_total{outcome="dropped"} (\d+)$', page, re.M)[1])

        deadline = time.monotonic() + PATIENCE_S
        while dropped() < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert server.log_text().count(f"failed creating trace file '{path}': {reason}") == 1
        # The traces after it is gone are written.
        path.unlink()
        with open_client("http", server) as client:
            client.infer("plus", [fp32("IN", [1.0])])
        while not path.exists() or len(path.read_text()) < 10:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert json.loads(path.read_text())
