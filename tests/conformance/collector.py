"""What do servers send to a collector of OpenTelemetry?"""

import contextlib
import dataclasses
import http.server
import json
import threading
import time
from collections.abc import Iterator

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

PATIENCE_S = 30
# What a collector may answer with: its status, and its body.
TAKEN = (200, ExportTraceServiceResponse().SerializeToString())


@dataclasses.dataclass(frozen=True)
class Span:
    name: str
    trace: str
    id: str
    parent: str
    state: str
    kind: int
    begin: int
    end: int
    events: list[tuple[str, int]]
    attributes: dict
    resource: dict
    scope: str

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


class Collector:
    """Takes what is posted to it. `answer` says how, and may take its time."""

    def __init__(self):
        self.spans: list[Span] = []
        self.posts: list[tuple[str, dict, int]] = []
        self.answer = lambda: TAKEN
        self.changed = threading.Condition()
        self.url = ""

    def take(self, path: str, headers: dict, body: bytes) -> tuple[int, bytes]:
        spans = read(headers, body)
        status, answer = self.answer()
        with self.changed:
            self.posts.append((path, headers, len(spans)))
            if status == 200:
                self.spans += spans
            self.changed.notify_all()
        return status, answer

    def wait(self, count: int, patience: float = PATIENCE_S) -> list[Span]:
        """So many spans, which are taken out."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.spans) >= count, patience), [span.name for span in self.spans]
            taken, self.spans = self.spans[:count], self.spans[count:]
        return taken

    def trace(self, patience: float = PATIENCE_S) -> list[Span]:
        """All spans of the next trace: its root comes with the others, or after them."""
        deadline = time.monotonic() + patience
        with self.changed:
            while True:
                for root in (span for span in self.spans if span.name == "InferRequest"):
                    found = [span for span in self.spans if span.trace == root.trace and is_below(span, root, self.spans)]
                    self.spans = [span for span in self.spans if span not in found]
                    return found
                assert self.changed.wait(deadline - time.monotonic()), [span.name for span in self.spans]


def is_below(span: Span, root: Span, spans: list[Span]) -> bool:
    by_id = {one.id: one for one in spans}
    while span.id != root.id:
        if span.parent not in by_id:
            return False
        span = by_id[span.parent]
    return True


def read(headers: dict, body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest()
    if headers["content-type"].startswith("application/json"):
        # In OTLP's JSON, ids are in hexadecimal digits and not in base64.
        json_format.ParseDict(with_base64(json.loads(body)), request, ignore_unknown_fields=True)
    else:
        request.ParseFromString(body)
    found = []
    for part in request.resource_spans:
        resource = attributes(part.resource.attributes)
        for scope in part.scope_spans:
            found += [span_of(span, resource, scope.scope.name) for span in scope.spans]
    return found


def with_base64(value):
    import base64

    if isinstance(value, list):
        return [with_base64(one) for one in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {key: base64.b64encode(bytes.fromhex(one)).decode() if key in ids else with_base64(one) for key, one in value.items()}


def span_of(span, resource: dict, scope: str) -> Span:
    events = [(event.name, event.time_unix_nano) for event in span.events]
    return Span(span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.trace_state, span.kind,
                span.start_time_unix_nano, span.end_time_unix_nano, events, attributes(span.attributes), resource, scope)  # fmt: skip


def attributes(pairs) -> dict:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextlib.contextmanager
def collecting(tls=None) -> Iterator[Collector]:
    """A collector on this host."""
    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answer = collector.take(self.path, headers, body)
            # Who sent it may be gone.
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        if tls:
            listening.socket = tls.wrap_socket(listening.socket, server_side=True)
        collector.url = f"{'https' if tls else 'http'}://127.0.0.1:{listening.server_port}/v1/traces"
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield collector
        listening.shutdown()
        thread.join()
