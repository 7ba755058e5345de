"""How is one question asked over HTTP and over gRPC, and one answer read from both?

A test of a rule that holds for both protocols takes the fixture `client` and speaks Client; a test of one protocol's own
faults uses `http_call` or the raw gRPC stub. Refusals are compared by their internal code and the start of the text:
nerite's sentences begin with Triton's and go on with the cause.
"""

import base64
import contextlib
import http.client
import json
import math
import struct
from dataclasses import dataclass, field

import grpc
import ml_dtypes
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

# internal code: (HTTP status, gRPC status)
CODES = {
    "UNKNOWN": (400, grpc.StatusCode.UNKNOWN),
    "INTERNAL": (500, grpc.StatusCode.INTERNAL),
    "NOT_FOUND": (404, grpc.StatusCode.NOT_FOUND),
    "INVALID_ARG": (400, grpc.StatusCode.INVALID_ARGUMENT),
    "UNAVAILABLE": (503, grpc.StatusCode.UNAVAILABLE),
    "UNSUPPORTED": (501, grpc.StatusCode.UNIMPLEMENTED),
    "ALREADY_EXISTS": (400, grpc.StatusCode.ALREADY_EXISTS),
    "CANCELLED": (400, grpc.StatusCode.CANCELLED),
}
NO_ID = "[request id: <id_unknown>] "
TIMEOUT_S = 240
MESSAGE_MAX = 2**31 - 1


def differs(reason: str, run: bool = True):
    """Marks a test or a row of a table on which Triton 2.51 answers otherwise."""
    return pytest.mark.triton_differs(reason, run=run)


class Refused(Exception):
    """The server said no; `status` is an int over HTTP and a grpc.StatusCode over gRPC."""

    def __init__(self, status, text: str):
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


@contextlib.contextmanager
def refuses(code: str, text: str):
    """The block must be refused with this internal code and a text that begins like this."""
    with pytest.raises(Refused) as caught:
        yield caught
    check_refusal(caught.value.status, caught.value.text, code, text)


def check_refusal(status, message: str, code: str, text: str) -> None:
    assert (status, message[: len(text)]) == (CODES[code][isinstance(status, grpc.StatusCode)], text), message


# ---------------------------------------------------------------------------------------------- raw HTTP


@dataclass
class Answer:
    """One HTTP answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return self.json["error"]

    def refused(self, code: str, text: str) -> None:
        message = self.error if self.body else ""
        check_refusal(self.status, message, code, text)

    def ok(self) -> "Answer":
        assert self.status == 200, f"{self.status}: {self.body[:500]!r}"
        return self


def http_call(url: str, method: str, path: str, body=None, headers: dict[str, str] | None = None) -> Answer:
    """One call on a connection of its own. A dict or list body is sent as JSON, text as UTF-8."""
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    with contextlib.closing(http.client.HTTPConnection(url, timeout=TIMEOUT_S)) as connection:
        # A server may answer before it has read all of a body it does not want.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())


def http_infer(url: str, model: str, document, binary: bytes = b"", headers=None, path: str = "infer") -> Answer:
    """An infer call; with `binary` the JSON's length is announced as the binary extension wants it."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    sent = dict(headers or {})
    if binary:
        sent.setdefault("Inference-Header-Content-Length", str(len(text)))
    return http_call(url, "POST", f"/v2/models/{model}/{path}", text + binary, sent)


# ---------------------------------------------------------------------------------------------- raw gRPC


@contextlib.contextmanager
def grpc_channel(url: str):
    options = [
        ("grpc.max_send_message_length", MESSAGE_MAX),
        ("grpc.max_receive_message_length", MESSAGE_MAX),
        ("grpc.primary_user_agent", "nerite-tests"),
    ]
    with contextlib.closing(grpc.insecure_channel(url, options=options)) as channel:
        yield channel


def service_stub(channel) -> service_pb2_grpc.GRPCInferenceServiceStub:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


@contextlib.contextmanager
def grpc_refuses(code: str, text: str):
    """The block's raw gRPC call must fail like this."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    check_refusal(caught.value.code(), caught.value.details(), code, text)


def infer_parameter(value) -> pb.InferParameter:
    """A Python value as the choice that clients send it by."""
    if isinstance(value, bool):
        return pb.InferParameter(bool_param=value)
    if isinstance(value, int):
        return pb.InferParameter(int64_param=value)
    if isinstance(value, float):
        return pb.InferParameter(double_param=value)
    return pb.InferParameter(string_param=value)


def fill_parameters(target, parameters: dict) -> None:
    for key, value in parameters.items():
        target[key].CopyFrom(value if isinstance(value, pb.InferParameter) else infer_parameter(value))


# ---------------------------------------------------------------------------------------------- both


@dataclass
class Given:
    """An input: either `raw` bytes or `region` as (name, byte size, offset)."""

    name: str
    datatype: str
    shape: list[int]
    raw: bytes = b""
    region: tuple[str, int, int] | None = None
    parameters: dict = field(default_factory=dict)


@dataclass
class RequestedOutput:
    """A requested output; `region` as (name, byte size, offset)."""

    name: str
    region: tuple[str, int, int] | None = None
    parameters: dict = field(default_factory=dict)


@dataclass
class Made:
    """An output of a reply; `raw` is None where the bytes went to a region."""

    datatype: str
    shape: list[int]
    raw: bytes | None


@dataclass
class Reply:
    model: str
    version: str
    id: str
    outputs: dict[str, Made]
    parameters: dict


def region_parameters(region) -> dict:
    if region is None:
        return {}
    name, byte_size, offset = region
    found = {"shared_memory_region": name, "shared_memory_byte_size": byte_size}
    return found | ({"shared_memory_offset": offset} if offset else {})


def fp32(name: str, values, shape=None) -> Given:
    array = np.asarray(values, np.float32)
    return Given(name, "FP32", list(array.shape) if shape is None else shape, array.tobytes())


def int32(name: str, values, shape=None) -> Given:
    array = np.asarray(values, np.int32)
    return Given(name, "INT32", list(array.shape) if shape is None else shape, array.tobytes())


def text(name: str, values: list[bytes], shape=None) -> Given:
    raw = b"".join(struct.pack("<I", len(value)) + value for value in values)
    return Given(name, "BYTES", [len(values)] if shape is None else shape, raw)


class HttpClient:
    protocol = "http"

    def __init__(self, url: str):
        self.url = url

    def call(self, method: str, path: str, body=None) -> Answer:
        answer = http_call(self.url, method, path, body)
        if answer.status != 200:
            raise Refused(answer.status, answer.error if answer.body else "")
        return answer

    def document(self, inputs, outputs=None, id="", parameters=None) -> dict:
        made = {"inputs": [], **({"id": id} if id else {}), **({"parameters": parameters} if parameters else {})}
        for one in inputs:
            entry = {"name": one.name, "datatype": one.datatype, "shape": one.shape}
            entry["parameters"] = one.parameters | (
                region_parameters(one.region) if one.region else {"binary_data_size": len(one.raw)}
            )
            made["inputs"].append(entry)
        if outputs is None:
            made.setdefault("parameters", {})["binary_data_output"] = True
        else:
            made["outputs"] = []
            for one in outputs:
                how = region_parameters(one.region)
                if not how and "classification" not in one.parameters:
                    how = {"binary_data": True}
                made["outputs"].append({"name": one.name, "parameters": how | one.parameters})
        return made

    def infer(self, model, inputs, outputs=None, version="", id="", parameters=None) -> Reply:
        binary = b"".join(one.raw for one in inputs if not one.region)
        where = f"versions/{version}/infer" if version else "infer"
        document = json.dumps(self.document(inputs, outputs, id, parameters)).encode()
        # Announced always, so that a request whose only tensors are empty is not taken for pure JSON.
        headers = {"Inference-Header-Content-Length": str(len(document))}
        answer = http_infer(self.url, model, document, binary, headers, path=where)
        if answer.status != 200:
            raise Refused(answer.status, answer.error if answer.body else "")
        return read_http_reply(answer)

    def register_system(self, name, key, byte_size, offset=0) -> None:
        body = {"key": key, "offset": offset, "byte_size": byte_size}
        self.call("POST", f"/v2/systemsharedmemory/region/{name}/register", body)

    def register_cuda(self, name, handle: bytes, device_id, byte_size) -> None:
        body = {
            "raw_handle": {"b64": base64.b64encode(handle).decode()}, "device_id": device_id, "byte_size": byte_size
        }
        self.call("POST", f"/v2/cudasharedmemory/region/{name}/register", body)

    def unregister(self, kind: str, name="") -> None:
        self.call("POST", f"/v2/{kind}sharedmemory{f'/region/{name}' if name else ''}/unregister")

    def status(self, kind: str, name="") -> list[dict]:
        return self.call("GET", f"/v2/{kind}sharedmemory{f'/region/{name}' if name else ''}/status").json

    def load(self, model: str, parameters: dict | None = None) -> None:
        given = {key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
                 for key, value in (parameters or {}).items()}
        self.call("POST", f"/v2/repository/models/{model}/load", {"parameters": given} if given else None)

    def unload(self, model: str, dependents: bool = False) -> None:
        body = {"parameters": {"unload_dependents": True}} if dependents else None
        self.call("POST", f"/v2/repository/models/{model}/unload", body)

    def index(self, ready: bool = False) -> list[dict]:
        found = self.call("POST", "/v2/repository/index", {"ready": ready}).json
        return [{key: one.get(key, "") for key in ("name", "version", "state", "reason")} for one in found]

    def model_ready(self, model: str, version: str = "") -> bool:
        where = f"/versions/{version}" if version else ""
        return http_call(self.url, "GET", f"/v2/models/{model}{where}/ready").status == 200

    def statistics(self, model: str = "", version: str = "") -> list[dict]:
        where = f"/{model}{f'/versions/{version}' if version else ''}" if model else ""
        return self.call("GET", f"/v2/models{where}/stats").json["model_stats"]

    def metadata(self, model: str, version: str = "") -> dict:
        return self.call("GET", f"/v2/models/{model}{f'/versions/{version}' if version else ''}").json

    def config(self, model: str, version: str = "") -> dict:
        return self.call("GET", f"/v2/models/{model}{f'/versions/{version}' if version else ''}/config").json


def read_http_reply(answer: Answer) -> Reply:
    length = answer.headers.get("inference-header-content-length")
    document = json.loads(answer.body[: int(length)] if length else answer.body)
    rest = answer.body[int(length):] if length else b""
    outputs = {}
    for one in document.get("outputs", []):
        size = one.get("parameters", {}).get("binary_data_size")
        raw = None
        if size is not None:
            raw, rest = rest[:size], rest[size:]
        elif "data" in one:
            raw = json_bytes(one["datatype"], one["data"])
        outputs[one["name"]] = Made(one["datatype"], one["shape"], raw)
    assert rest == b"", f"{len(rest)} bytes more than the outputs account for"
    return Reply(
        document["model_name"], document["model_version"], document.get("id", ""), outputs,
        document.get("parameters", {}),
    )


def json_bytes(datatype: str, data: list) -> bytes:
    """A JSON `data` list in the form that binary tensors have."""
    if datatype == "BYTES":
        return text("", [one.encode() for one in data]).raw
    return np.array(data, NUMPY[datatype]).tobytes()


NUMPY = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BF16": ml_dtypes.bfloat16,
}


class GrpcClient:
    protocol = "grpc"

    def __init__(self, channel):
        self.stub = service_stub(channel)

    def call(self, rpc: str, request):
        try:
            return getattr(self.stub, rpc)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise Refused(error.code(), error.details()) from error

    def request(self, model, inputs, outputs=None, version="", id="", parameters=None) -> pb.ModelInferRequest:
        made = pb.ModelInferRequest(model_name=model, model_version=version, id=id)
        fill_parameters(made.parameters, parameters or {})
        for one in inputs:
            entry = made.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
            fill_parameters(entry.parameters, one.parameters | region_parameters(one.region))
            if not one.region:
                made.raw_input_contents.append(one.raw)
        for one in outputs or []:
            entry = made.outputs.add(name=one.name)
            fill_parameters(entry.parameters, one.parameters | region_parameters(one.region))
        return made

    def infer(self, model, inputs, outputs=None, version="", id="", parameters=None) -> Reply:
        answer = self.call("ModelInfer", self.request(model, inputs, outputs, version, id, parameters))
        return read_grpc_reply(answer, outputs or [])

    def register_system(self, name, key, byte_size, offset=0) -> None:
        request = pb.SystemSharedMemoryRegisterRequest(name=name, key=key, offset=offset, byte_size=byte_size)
        self.call("SystemSharedMemoryRegister", request)

    def register_cuda(self, name, handle: bytes, device_id, byte_size) -> None:
        request = pb.CudaSharedMemoryRegisterRequest(
            name=name, raw_handle=handle, device_id=device_id, byte_size=byte_size
        )
        self.call("CudaSharedMemoryRegister", request)

    def unregister(self, kind: str, name="") -> None:
        title = f"{kind.capitalize()}SharedMemoryUnregister"
        self.call(title, getattr(pb, f"{title}Request")(name=name))

    def status(self, kind: str, name="") -> list[dict]:
        title = f"{kind.capitalize()}SharedMemoryStatus"
        regions = self.call(title, getattr(pb, f"{title}Request")(name=name)).regions
        fields = ("name", "key", "offset", "byte_size") if kind == "system" else ("name", "device_id", "byte_size")
        return [{one: getattr(region, one) for one in fields} for _, region in sorted(regions.items())]

    def load(self, model: str, parameters: dict | None = None) -> None:
        request = pb.RepositoryModelLoadRequest(model_name=model)
        for key, value in (parameters or {}).items():
            choice = {"bytes_param": value} if isinstance(value, bytes) else {"string_param": value}
            request.parameters[key].CopyFrom(pb.ModelRepositoryParameter(**choice))
        self.call("RepositoryModelLoad", request)

    def unload(self, model: str, dependents: bool = False) -> None:
        request = pb.RepositoryModelUnloadRequest(model_name=model)
        if dependents:
            request.parameters["unload_dependents"].bool_param = True
        self.call("RepositoryModelUnload", request)

    def index(self, ready: bool = False) -> list[dict]:
        found = self.call("RepositoryIndex", pb.RepositoryIndexRequest(ready=ready)).models
        return [{key: getattr(one, key) for key in ("name", "version", "state", "reason")} for one in found]

    def model_ready(self, model: str, version: str = "") -> bool:
        return self.call("ModelReady", pb.ModelReadyRequest(name=model, version=version)).ready

    def statistics(self, model: str = "", version: str = "") -> list[dict]:
        from google.protobuf import json_format

        answer = self.call("ModelStatistics", pb.ModelStatisticsRequest(name=model, version=version))
        form = dict(preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        return [numbers(json_format.MessageToDict(one, **form)) for one in answer.model_stats]

    def metadata(self, model: str, version: str = "") -> dict:
        from google.protobuf import json_format

        answer = self.call("ModelMetadata", pb.ModelMetadataRequest(name=model, version=version))
        form = dict(preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        return numbers(json_format.MessageToDict(answer, **form))

    def config(self, model: str, version: str = "") -> dict:
        from google.protobuf import json_format

        answer = self.call("ModelConfig", pb.ModelConfigRequest(name=model, version=version))
        form = dict(preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        return numbers(json_format.MessageToDict(answer.config, **form))


def numbers(value, key: str = ""):
    """protobuf's JSON writes 64-bit numbers as strings; names and versions stay strings."""
    if isinstance(value, dict):
        return {name: numbers(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [numbers(one, key) for one in value]
    keep = ("name", "version", "versions", "string_value", "platform")
    if isinstance(value, str) and key not in keep and value.lstrip("-").isdigit():
        return int(value)
    return value


def read_grpc_reply(answer: pb.ModelInferResponse, requested=()) -> Reply:
    assert len(answer.outputs) == len(answer.raw_output_contents)
    in_region = {one.name for one in requested if one.region}
    outputs = {}
    for one, raw in zip(answer.outputs, answer.raw_output_contents):
        assert not one.HasField("contents") and not one.parameters
        if one.name in in_region:
            assert raw == b""
        outputs[one.name] = Made(one.datatype, list(one.shape), None if one.name in in_region else raw)
    return Reply(answer.model_name, answer.model_version, answer.id, outputs, parameters_of(answer))


def parameters_of(answer) -> dict:
    return {key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in answer.parameters.items()}


@contextlib.contextmanager
def open_client(protocol: str, server):
    if protocol == "http":
        yield HttpClient(server.http)
    else:
        with grpc_channel(server.grpc) as channel:
            yield GrpcClient(channel)


def element_count(shape) -> int:
    return math.prod(shape)
