"""Do traces reach a collector of OpenTelemetry as Triton's do?"""

import asyncio
import contextlib
import json
import os
import re
import sys
import time
import types

import numpy as np
import pytest
import servers
import trustme
from clients import differs, grpc_channel, http_call, http_infer, pb, service_stub
from collector import TAKEN, collecting
from footprint import wait_until
from python_setup import PATIENT
from test_ensembles import put_ensemble, put_part
from test_tracing import CALLING_MODEL, COMPUTE, GRPC, HTTP, PLUS

sys.path.insert(0, str(servers.ROOT / "python"))

import nerite  # noqa: E402

# A model that answers with what it is told of its trace.
CONTEXT_MODEL = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        told = [np.frombuffer(str(request.trace().get_context()).encode(), np.uint8).astype(np.float32) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one)]) for one in told]
"""
OWN = ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
TRACE, SPAN = "0af7651916cd43dd8448eb211c12666c", "b7ad6b7169242424"
PARENT = f"00-{TRACE}-{SPAN}-01"
DELAY_MS = 200
FLAGS = ["--trace-config=mode=opentelemetry", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS",
         f"--trace-config=opentelemetry,bsp_schedule_delay={DELAY_MS}"]  # fmt: skip


@pytest.fixture(scope="module")
def repository(launcher):
    made = launcher.copy_of("opentelemetry", "identity_fp32")
    put_part(made, "plus", PLUS.replace("BODY", ""))
    put_part(made, "fails", PLUS.replace("BODY", 'raise ValueError("no luck")'))
    put_part(made, "tells", CONTEXT_MODEL)
    put_part(made, "asks", CALLING_MODEL.replace("TRACE", ", trace=request.trace()"))
    put_ensemble(made, "both", "plus IN=IN OUT=MID", "plus IN=MID OUT=OUT")
    return made


@pytest.fixture
def nerite_only(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no such promise")


@contextlib.contextmanager
def serving(launcher, repository, name, collector, *flags):
    flags = [*FLAGS, f"--trace-config=opentelemetry,url={collector.url}", *flags]
    with launcher.running(name, PATIENT, *flags, repository=repository) as server:
        yield server


@pytest.fixture(scope="module")
def traced(launcher, repository, tmp_path_factory):
    flags = ["--trace-config=opentelemetry,resource=deployment=test", "--trace-config=opentelemetry,resource=service.name=mine"]
    socket = tmp_path_factory.mktemp("session") / "socket"
    if not launcher.oracle:
        flags.append(f"--session-socket={socket}")
    with collecting() as collector, serving(launcher, repository, "otel", collector, *flags) as server:
        yield types.SimpleNamespace(server=server, collector=collector, socket=socket)


def infer(server, protocol, model, headers=None, id=""):
    """The answer's bytes of OUT. The clients of the other tests have no headers."""
    values = np.array([1.0, 2.5], np.float32)
    if protocol == "http":
        document = {"id": id, "inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": values.tolist()}]}
        return http_infer(server.http, model, document, headers=headers).ok().json["outputs"][0]["data"]
    request = pb.ModelInferRequest(model_name=model, id=id)
    request.inputs.add(name="IN", datatype="FP32", shape=[2])
    request.raw_input_contents.append(values.tobytes())
    with grpc_channel(server.grpc) as channel:
        answer = service_stub(channel).ModelInfer(request, metadata=list((headers or {}).items()))
    return np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()


def shape(spans) -> dict:
    """The names of the spans below each span, by its name."""
    names = {span.id: span.name for span in spans}
    found = {}
    for span in spans:
        found.setdefault(names.get(span.parent, ""), []).append(span.name)
    return {name: sorted(below) for name, below in found.items()}


def only(spans, name):
    (found,) = [span for span in spans if span.name == name]
    return found


@pytest.mark.parametrize(("protocol", "front"), [("http", HTTP), ("grpc", GRPC)])
def test_a_request_is_a_span_of_the_front_end_one_of_its_model_and_one_of_the_computation(traced, protocol, front):
    before = time.time_ns()
    infer(traced.server, protocol, "plus", id="mine")
    spans = traced.collector.trace()
    assert shape(spans) == {"": ["InferRequest"], "InferRequest": ["plus"], "plus": ["compute"]}
    root, model, compute = (only(spans, name) for name in ("InferRequest", "plus", "compute"))
    assert (sorted(root.names()), sorted(model.names()), compute.names()) == (sorted(front), sorted(OWN), COMPUTE)
    attributes = model.attributes
    assert attributes.pop("triton.trace_id") > 0
    assert attributes == {"triton.model_name": "plus", "triton.model_version": 1, "triton.trace_parent_id": 0, "triton.request_id": "mine"}
    assert (root.attributes, compute.attributes) == ({}, {})
    assert {(span.kind, span.scope, span.trace, span.resource["service.name"], span.resource["deployment"]) for span in spans} == {
        (2, "triton-server", root.trace, "mine", "test")
    }
    assert before <= root.begin <= model.begin <= compute.begin <= compute.end <= model.end <= root.end <= time.time_ns()


def test_the_steps_of_an_ensemble_are_below_it(traced):
    infer(traced.server, "http", "both", id="mine")
    spans = traced.collector.trace()
    expected = {"": ["InferRequest"], "InferRequest": ["both"], "both": ["plus", "plus"], "plus": ["compute", "compute"]}
    assert shape(spans) == expected
    top = only(spans, "both").attributes
    steps = [span.attributes for span in spans if span.name == "plus"]
    assert [step["triton.trace_parent_id"] for step in steps] == [top["triton.trace_id"]] * 2


def test_what_a_model_asks_of_another_with_its_trace_is_below_it(traced):
    infer(traced.server, "http", "asks")
    spans = traced.collector.trace()
    expected = {"": ["InferRequest"], "InferRequest": ["asks"], "asks": ["compute", "plus"], "plus": ["compute"]}
    assert shape(spans) == expected


def test_a_request_that_fails_has_its_spans(traced):
    values = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [1.0]}
    assert http_infer(traced.server.http, "fails", {"inputs": [values]}).status == 500
    assert shape(traced.collector.trace()) == {"": ["InferRequest"], "InferRequest": ["fails"], "fails": ["compute"]}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("flags", ["01", "00"])
def test_a_request_continues_the_trace_of_its_client(traced, protocol, flags):
    infer(traced.server, protocol, "both", {"traceparent": f"00-{TRACE}-{SPAN}-{flags}"})
    spans = traced.collector.trace()
    root = only(spans, "InferRequest")
    assert root.parent == SPAN and {(span.trace, span.state) for span in spans} == {(TRACE, "")}
    assert len(spans) == 6


# 2.51 loses it over gRPC.
STATED = ["http", pytest.param("grpc", marks=differs("2.51 hands no tracestate on over gRPC"))]


@pytest.mark.parametrize("protocol", STATED)
def test_what_vendors_add_to_a_trace_is_handed_on(traced, protocol):
    attributes = infer(traced.server, protocol, "tells", {"traceparent": PARENT, "tracestate": "a=b,c=\"d\""})
    spans = traced.collector.trace()
    context = {"traceparent": f"00-{TRACE}-{only(spans, 'tells').id}-01", "tracestate": "a=b,c=\"d\""}
    assert json.loads(bytes(map(int, attributes))) == context and {span.state for span in spans} == {"a=b,c=\"d\""}


def test_requests_of_a_stream_continue_it_too(traced):
    request = pb.ModelInferRequest(model_name="plus")
    request.inputs.add(name="IN", datatype="FP32", shape=[2])
    request.raw_input_contents.append(np.array([1, 2], np.float32).tobytes())
    with grpc_channel(traced.server.grpc) as channel:
        metadata = [("traceparent", PARENT)]
        answers = list(service_stub(channel).ModelStreamInfer(iter([request, request]), metadata=metadata))
    assert [answer.error_message for answer in answers] == ["", ""]
    for _ in answers:
        assert {span.trace for span in traced.collector.trace()} == {TRACE}


NO_PARENTS = ["garbage", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}", "0" * 4000]


@pytest.mark.parametrize("parent", NO_PARENTS)
def test_what_is_no_traceparent_is_passed_over(traced, parent):
    infer(traced.server, "http", "plus", {"traceparent": parent})
    root = only(traced.collector.trace(), "InferRequest")
    assert root.parent == "" and root.trace not in (TRACE, "0" * 32)


VALUES = np.array([1.0, 2.5], np.float32)


@contextlib.contextmanager
def connected(traced, way):
    """The Python client of nerite, over a session or one of the protocols."""
    if way == "session":
        made = nerite.connect(f"unix:{traced.socket}")
    else:
        made = nerite.connect(f"{way}://{getattr(traced.server, way)}", session_socket=os.devnull)
    with made as client:
        assert (client.transport == "session") == (way == "session")
        yield client


def check_trace(traced, parent, state=""):
    """The next trace is below this span of the client, or a trace of its own."""
    spans = traced.collector.trace()
    assert shape(spans) == {"": ["InferRequest"], "InferRequest": ["plus"], "plus": ["compute"]}
    root = only(spans, "InferRequest")
    assert (root.parent, {span.state for span in spans}) == (parent, {state})
    assert (root.trace == TRACE) == bool(parent)


WAYS = pytest.mark.parametrize("way", ["session", "http", "grpc"])


@pytest.mark.usefixtures("nerite_only")
@WAYS
def test_a_call_of_the_python_client_continues_its_trace(traced, way):
    with connected(traced, way) as client:
        model = client.model("plus")
        # Over a session the first call is plain, and the others are prepared.
        for state in ("a=b", "", "c=d"):
            assert model(VALUES, trace_parent=PARENT, trace_state=state).OUT.tolist() == [2.0, 3.5]
            check_trace(traced, SPAN, state=state)
        model(VALUES)
        check_trace(traced, "")
        for more in ({"id": "mine"}, {"parameters": {"a": 1}}, {"timeout": 60}):
            model(VALUES, trace_parent=PARENT, **more)
            check_trace(traced, SPAN)
        model.submit(VALUES, trace_parent=PARENT).result()
        check_trace(traced, SPAN)
        with pytest.raises(TypeError, match="trace_parent is a str"):
            model(VALUES, trace_parent=b"00")


@pytest.mark.usefixtures("nerite_only")
@WAYS
def test_a_call_of_the_python_client_for_asyncio_continues_its_trace(traced, way):
    async def calls(model):
        for trace in ({"trace_parent": PARENT, "trace_state": "a=b"}, {"trace_parent": PARENT}, {}):
            await model.aio(VALUES, **trace)
            check_trace(traced, SPAN if trace else "", state=trace.get("trace_state", ""))

    with connected(traced, way) as client:
        asyncio.run(calls(client.model("plus")))


@pytest.mark.usefixtures("nerite_only")
@pytest.mark.parametrize("way", ["session", "grpc"])
def test_a_stream_of_the_python_client_continues_its_trace(traced, way):
    with connected(traced, way) as client:
        for trace in ({"trace_parent": PARENT, "trace_state": "a=b"}, {}):
            assert len(list(client.model("plus").stream(VALUES, **trace))) == 1
            check_trace(traced, SPAN if trace else "", state=trace.get("trace_state", ""))


@pytest.mark.usefixtures("nerite_only")
@WAYS
def test_what_the_python_client_is_given_and_is_no_traceparent_is_passed_over(traced, way):
    with connected(traced, way) as client:
        model = client.model("plus")
        for parent in (*NO_PARENTS, "", "a\r\nhost: b", "\xe4" * 55):
            model(VALUES, trace_parent=parent, trace_state="a=b")
            check_trace(traced, "")
        for state in ("x" * 513, "a=\n", "\xe4"):
            model(VALUES, trace_parent=PARENT, trace_state=state)
            check_trace(traced, SPAN)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_python_model_is_told_of_its_span(traced, protocol):
    attributes = infer(traced.server, protocol, "tells", {"traceparent": PARENT})
    context = json.loads(bytes(map(int, attributes)))
    model = only(traced.collector.trace(), "tells")
    assert context == {"traceparent": f"00-{TRACE}-{model.id}-01"}
    own = json.loads(bytes(map(int, infer(traced.server, protocol, "tells"))))
    model = only(traced.collector.trace(), "tells")
    assert own == {"traceparent": f"00-{model.trace}-{model.id}-01"}


def test_the_settings_tell_of_the_collector(traced):
    expected = {
        "trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "-1", "trace_mode": "opentelemetry",
        "url": traced.collector.url, "bsp_schedule_delay": str(DELAY_MS), "bsp_max_export_batch_size": "512",
        "bsp_max_queue_size": "2048",
    }  # fmt: skip
    found = http_call(traced.server.http, "GET", "/v2/trace/setting").ok().json
    assert "service.name=mine" in found.pop("resource")
    assert found == expected
    with grpc_channel(traced.server.grpc) as channel:
        settings = service_stub(channel).TraceSetting(pb.TraceSettingRequest()).settings
    found = {name: list(one.value) for name, one in settings.items()}
    assert sorted(found.pop("resource")) == ["deployment=test", "service.name=mine"]
    assert found == {name: value if isinstance(value, list) else [value] for name, value in expected.items()}


def change(server, body):
    return http_call(server.http, "POST", "/v2/trace/setting", body)


def test_where_spans_go_cannot_be_changed_by_clients(traced):
    before = http_call(traced.server.http, "GET", "/v2/trace/setting").ok().json
    assert change(traced.server, {"url": "http://elsewhere", "bsp_max_queue_size": "1", "trace_mode": "triton"}).ok().json == before
    change(traced.server, {"trace_file": "/tmp/x"}).refused("UNSUPPORTED", "trace file location can not be updated through network protocol")


def test_requests_of_traced_clients_are_traced_whatever_rate_and_count_say(traced):
    change(traced.server, {"trace_rate": "1", "trace_count": "1"}).ok()
    infer(traced.server, "http", "plus", id="counted")
    assert only(traced.collector.trace(), "plus").attributes["triton.request_id"] == "counted"
    infer(traced.server, "http", "plus", id="unseen")
    infer(traced.server, "http", "plus", {"traceparent": PARENT}, id="seen")
    assert only(traced.collector.trace(), "plus").attributes["triton.request_id"] == "seen"
    change(traced.server, {"trace_level": ["OFF"]}).ok()
    infer(traced.server, "http", "plus", {"traceparent": PARENT}, id="unseen")
    change(traced.server, {"trace_level": None, "trace_rate": None, "trace_count": None}).ok()
    infer(traced.server, "http", "plus", id="last")
    assert only(traced.collector.trace(), "plus").attributes["triton.request_id"] == "last"


@differs("2.51 takes a rate of 0, which means requests of traced clients only, on the command line alone")
def test_a_rate_of_0_traces_requests_of_traced_clients_only(traced):
    change(traced.server, {"trace_rate": "0"}).ok()
    infer(traced.server, "http", "plus", id="unseen")
    infer(traced.server, "http", "plus", {"traceparent": PARENT}, id="seen")
    assert only(traced.collector.trace(), "plus").attributes["triton.request_id"] == "seen"
    change(traced.server, {"trace_rate": None}).ok()


def test_spans_that_wait_are_sent_before_the_server_ends(launcher, repository):
    hour = "--trace-config=opentelemetry,bsp_schedule_delay=3600000"
    with collecting() as collector, serving(launcher, repository, "otel_stop", collector, hour) as server:
        infer(server, "http", "plus")
        time.sleep(0.5)
        assert not collector.posts
        assert servers.stop(server) == 0
        assert len(collector.trace(5)) == 3


def test_a_batch_is_sent_as_soon_as_it_is_full(launcher, repository):
    more = ["--trace-config=opentelemetry,bsp_schedule_delay=3600000", "--trace-config=opentelemetry,bsp_max_export_batch_size=6"]
    with collecting() as collector, serving(launcher, repository, "otel_batch", collector, *more) as server:
        for _ in range(4):
            infer(server, "http", "plus")
        assert len(collector.wait(12)) == 12
        assert all(spans <= 6 for _, _, spans in collector.posts)


def metric(server, name: str) -> int:
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    return int(re.search(rf"^{re.escape(name)} (\d+)$", page, re.M)[1])


def wait_for(server, name: str, count: int) -> None:
    deadline = time.monotonic() + 30
    while metric(server, name) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert metric(server, name) >= count


def written(outcome: str) -> str:
    return 'nerite_traces_total{outcome="%s"}' % outcome


@pytest.mark.usefixtures("nerite_only")
def test_spans_go_to_a_collector_with_a_certificate_and_headers(launcher, repository, tmp_path, monkeypatch):
    import ssl

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=one%20two")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=b")
    with collecting(context) as collector, serving(launcher, repository, "otel_tls", collector) as server:
        infer(server, "http", "plus")
        root = only(collector.trace(), "InferRequest")
    (path, headers, _), *_ = collector.posts
    assert (path, headers["x-token"], headers["content-type"]) == ("/v1/traces", "one two", "application/x-protobuf")
    assert (root.resource["service.name"], root.resource["zone"]) == ("triton-inference-server", "b")


@pytest.mark.usefixtures("nerite_only")
def test_a_post_is_tried_again_where_the_collector_asks_for_it(launcher, repository):
    with collecting() as collector, serving(launcher, repository, "otel_again", collector) as server:
        answers = iter([(503, b"busy"), (429, b"")])
        collector.answer = lambda: next(answers, TAKEN)
        infer(server, "http", "plus")
        assert len(collector.trace()) == 3
        wait_for(server, written("written"), 1)
        assert len(collector.posts) == 3 and metric(server, written("dropped")) == 0


@pytest.mark.usefixtures("nerite_only")
def test_a_collector_that_refuses_loses_spans_which_are_counted_and_logged(launcher, repository):
    with collecting() as collector, serving(launcher, repository, "otel_refused", collector) as server:
        collector.answer = lambda: (400, b"no")
        infer(server, "http", "plus")
        wait_for(server, written("dropped"), 1)
        collector.answer = lambda: (200, b"\xff\xffnonsense")
        infer(server, "http", "plus")
        wait_for(server, written("written"), 1)
        log = server.log_text()
    assert f"1 traces are lost: the collector at '{collector.url}' did not take them: it answered 400 Bad Request" in log
    assert f"the collector at '{collector.url}' takes traces again" in log


@pytest.mark.usefixtures("nerite_only")
def test_a_collector_of_no_url_is_reported_and_traces_nothing(launcher, repository):
    wrong = types.SimpleNamespace(url="grpc://nowhere:1")
    with serving(launcher, repository, "otel_wrong", wrong) as server:
        infer(server, "http", "plus")
        assert "nothing is traced: no thread for traces: 'grpc://nowhere:1' is no URL of a collector" in server.log_text()


def test_a_line_of_the_log_has_the_trace_that_the_server_made(launcher, repository, nerite_only):
    with collecting() as collector, serving(launcher, repository, "otel_lines", collector, "--log-access=true") as server:
        infer(server, "http", "plus", id="mine")
        trace = only(collector.trace(), "InferRequest").trace
        found = lambda: re.findall(r"request_id=mine .* queue_us=\d+ trace_id=(\w+)", server.log_text())
        wait_until(lambda: found() != [])
        assert found() == [trace]
