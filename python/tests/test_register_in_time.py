"""Does a call end in time whose regions a server never registers?"""

import concurrent.futures
import contextlib
import http.server
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as origin
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

import nerite
import nerite.grpc
from nerite import _transports

# Longer than any call here may take.
LONG_S = 60


class Registers(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A server that does not answer registrations, and answers inferences with their first input."""

    def __init__(self):
        self.may_end = threading.Event()
        self.registrations = 0

    def ServerMetadata(self, request, context):
        return service_pb2.ServerMetadataResponse(name="registers")

    def ModelMetadata(self, request, context):
        tensor = service_pb2.ModelMetadataResponse.TensorMetadata(name="IN", datatype="FP32", shape=[-1])
        return service_pb2.ModelMetadataResponse(name="registers", inputs=[tensor], outputs=[tensor])

    def SystemSharedMemoryRegister(self, request, context):
        self.registrations += 1
        self.may_end.wait(LONG_S)
        return service_pb2.SystemSharedMemoryRegisterResponse()

    def SystemSharedMemoryUnregister(self, request, context):
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    def ModelInfer(self, request, context):
        shape = request.inputs[0].shape
        output = service_pb2.ModelInferResponse.InferOutputTensor(name="IN", datatype="FP32", shape=shape)
        return service_pb2.ModelInferResponse(model_name="registers", outputs=[output], raw_output_contents=request.raw_input_contents)


@pytest.fixture
def registers(monkeypatch, tmp_path):
    # No other server of this user takes part.
    monkeypatch.setenv("NERITE_SESSION_SOCKET", str(tmp_path / "none"))
    found = Registers()
    made = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(found, made)
    found.address = f"127.0.0.1:{made.add_insecure_port('127.0.0.1:0')}"
    made.start()
    yield found
    found.may_end.set()
    made.stop(0).wait()


@pytest.mark.parametrize("buffers", ["auto", "region"])
def test_the_timeout_of_a_call_holds_for_its_regions(registers, buffers):
    with nerite.connect(f"grpc://{registers.address}", buffers=buffers) as made:
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="no answer within 0.5 s"):
            made.model("registers")([1.0], timeout=0.5)
        assert time.monotonic() - started < _transports.REGISTER_S and registers.registrations == 1


def test_a_region_that_is_not_registered_in_time_is_not_waited_for(registers, monkeypatch):
    monkeypatch.setattr(nerite.grpc._client, "REGISTER_S", 0.3)
    with nerite.connect(f"grpc://{registers.address}") as made:
        assert made.model("registers")([1.0, 2.0]).IN.tolist() == [1, 2]
        assert made.model("registers")([1.0, 2.0], timeout=LONG_S).IN.tolist() == [1, 2]
        assert made.transport == "inline" and registers.registrations > 0
    with nerite.connect(f"grpc://{registers.address}", buffers="region") as made:
        for timeout in (None, LONG_S):
            with pytest.raises(InferenceServerException, match="the server did not take a region: .*Deadline Exceeded"):
                made.model("registers")([1.0, 2.0], timeout=timeout)


@pytest.mark.parametrize("is_named", [True, False])
def test_the_timeout_of_the_drop_in_client_holds_for_its_regions(registers, is_named):
    given = origin.InferInput("IN", [2], "FP32").set_data_from_numpy(np.ones(2, np.float32))
    outputs = [nerite.grpc.InferOutput("IN", [2], "FP32")]
    with nerite.grpc.InferenceServerClient(registers.address, buffers="region") as client:
        timeout = {"client_timeout": 0.5} if is_named else {}
        further = () if is_named else ("", 0, False, False, 0, None, 0.5)
        heard = concurrent.futures.Future()
        started = time.monotonic()
        with pytest.raises(InferenceServerException, match="Deadline Exceeded") as late:
            client.infer("registers", [given], "", outputs, *further, **timeout)
        assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.async_infer("registers", [given], lambda result, error: heard.set_result(error), "", outputs, *further, **timeout)
            raise heard.result(LONG_S)
        assert time.monotonic() - started < _transports.REGISTER_S and registers.registrations == 2


class Silent(http.server.BaseHTTPRequestHandler):
    """Does not answer registrations."""

    def do_GET(self):
        self.answer(b'{"name":"silent","inputs":[{"name":"IN","datatype":"FP32","shape":[-1]}],"outputs":[],"extensions":[]}')

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if "systemsharedmemory" in self.path:
            self.server.may_end.wait(LONG_S)
        else:
            self.answer(b'{"model_name":"silent","outputs":[]}')

    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given):
        pass


@contextlib.contextmanager
def silent():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as made:
        made.may_end, made.daemon_threads = threading.Event(), True
        threading.Thread(target=made.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{made.server_port}"
        finally:
            made.may_end.set()
            made.shutdown()


def test_the_same_holds_over_http(monkeypatch, tmp_path):
    monkeypatch.setenv("NERITE_SESSION_SOCKET", str(tmp_path / "none"))
    with silent() as url, nerite.connect(url) as made:
        model, started = made.model("silent"), time.monotonic()
        with pytest.raises(TimeoutError, match="no answer within 0.5 s"):
            model([1.0], timeout=0.5)
        assert time.monotonic() - started < _transports.REGISTER_S
        monkeypatch.setattr(nerite.http._client, "REGISTER_S", 0.3)
        assert list(made.model("silent")([1.0], timeout=LONG_S)) == []
        assert made.transport == "inline"
