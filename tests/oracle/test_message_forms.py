"""Do nerite and Triton read each form of a request alike, in JSON and in typed contents of gRPC?"""

import itertools

import grpc
import pytest
from clients import NUMPY, grpc_channel, http_call, pb, service_stub, text
from conftest import both_servers, check_same

MODEL = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests]
'''
DATATYPES = ("BOOL", "UINT8", "INT8", "INT32", "INT64", "UINT64", "FP16", "FP32", "FP64", "BYTES")
VALUES = (
    "1", "0", "-1", "1.0", "1.5", "-0.0", "1e2", "1E+2", "1e400", "127", "128", "255", "256", "32768", "65504", "65520", "2147483648", "4294967296", "3.5e38",
    "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "true", "false", "null", '"1"', '""', '"é"', '"\\u00e9"',
    '"\\ud83d\\ude00"', '"\\ud83d"', '"\\u0000"', "[1]", "[]", "{}", "NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "0x1", "1,", "",
)  # fmt: skip
# Each of two values.
SHAPES = (
    "[2]", "[2,1]", "[1,2]", "[-2]", "[]", "2", '"2"', "[2.0]", '["2"]', "null", "[null]", "[true]", "[3]", "[1]", "[0]", "[[2]]", "{}", "[2,]", "[1e0,2]",
    "[4294967298]", "[9223372036854775808]",
)  # fmt: skip
DATA = ("[1,2]", "[[1,2]]", "[[1],[2]]", "[[1],2]", "[1,[2]]", "[[[1],[2]]]", "[1,2,[]]", "[]", "[[]]", "1", '"1"', "null", "{}", "[1]", "[1,2,3]", "[1,2,]", "[,1,2]")
# `I` stands for the input, `O` for an output.
WHOLE = (
    "", " ", "{}", "[]", "null", "1", '{"inputs":[I]}', '{"inputs":[I],}', '{"inputs":I}', '{"inputs":[]}', '{"inputs":null}', '{"inputs":[I,I]}', '{"inputs":[I],"inputs":[]}',
    '{"inputs":[I]} x', '{"inputs":[I]}\n', "{'inputs':[I]}", '{inputs:[I]}', '\ufeff{"inputs":[I]}', '{"inputs":[I]/* c */}', '{"inputs":[I],"unknown":1}',
    '{"id":"1","inputs":[I]}', '{"id":1,"inputs":[I]}', '{"id":null,"inputs":[I]}', '{"id":-1,"inputs":[I]}', '{"id":1.5,"inputs":[I]}', '{"id":true,"inputs":[I]}',
    '{"id":[],"inputs":[I]}', '{"inputs":[I],"outputs":[O]}', '{"inputs":[I],"outputs":[]}', '{"inputs":[I],"outputs":O}', '{"inputs":[I],"outputs":null}',
    '{"inputs":[I],"outputs":[{}]}', '{"inputs":[I],"outputs":[{"name":"NONE"}]}', '{"inputs":[I],"outputs":[1]}', '{"inputs":[I],"outputs":[{"name":1}]}',
    '{"inputs":[1]}', '{"inputs":[{}]}', '{"inputs":["I"]}', '{"inputs":[null]}',
)  # fmt: skip
PARAMETERS = (
    "{}", "null", "1", "[]", '{"a":1}', '{"a":"1"}', '{"a":true}', '{"a":1.5}', '{"a":null}', '{"a":[]}', '{"a":{}}', '{"a":1,"a":2}', '{"":1}', '{"a":18446744073709551615}',
    '{"priority":1}', '{"priority":"1"}', '{"priority":-1}', '{"priority":1.5}', '{"timeout":0}', '{"timeout":"0"}', '{"timeout":-1}', '{"sequence_id":0}', '{"sequence_id":"0"}',
    '{"sequence_id":""}', '{"sequence_start":true}', '{"sequence_start":1}', '{"sequence_end":"true"}', '{"binary_data_output":false}', '{"binary_data_output":"x"}',
    '{"binary_data_output":1}', '{"triton_x":1}', '{"triton_enable_empty_final_response":true}',
)  # fmt: skip
TENSOR_PARAMETERS = (
    "{}", "null", "1", "[]", '{"a":1}', '{"a":null}', '{"binary_data_size":8}', '{"binary_data_size":0}', '{"binary_data_size":"8"}', '{"binary_data_size":-1}', '{"classification":1}',
    '{"classification":"1"}', '{"classification":0}', '{"classification":-1}', '{"binary_data":false}', '{"binary_data":"x"}', '{"binary_data":1}', '{"shared_memory_region":"x"}',
    '{"shared_memory_region":1}', '{"shared_memory_offset":0}', '{"shared_memory_byte_size":0}',
)  # fmt: skip


def tensor(datatype="FP32", shape="[2]", data="[1,2]", name='"IN"', more="") -> str:
    return f'{{"name":{name},"datatype":"{datatype}","shape":{shape},"data":{data}{more}}}'


def bodies() -> dict[str, tuple[str, str]]:
    """The model's datatype and the body."""
    made = {}
    for datatype, value in itertools.product(DATATYPES, VALUES):
        made[f"{datatype} of {value}"] = datatype, f'{{"inputs":[{tensor(datatype, "[1]", f"[{value}]")}]}}'
    for shape, data in itertools.product(SHAPES, DATA):
        made[f"shape {shape} of {data}"] = "FP32", f'{{"inputs":[{tensor(shape=shape, data=data)}]}}'
    for whole in WHOLE:
        made[f"whole {whole}"] = "FP32", whole.replace("I]", tensor() + "]").replace("[I,", f"[{tensor()},").replace(":I", f":{tensor()}").replace("[O]", '[{"name":"OUT"}]').replace(":O", ':{"name":"OUT"}')
    for parameters in PARAMETERS:
        made[f"parameters {parameters}"] = "FP32", f'{{"inputs":[{tensor()}],"parameters":{parameters}}}'
    for parameters in TENSOR_PARAMETERS:
        made[f"input with {parameters}"] = "FP32", f'{{"inputs":[{tensor(more=f""","parameters":{parameters}""")}]}}'
        made[f"output with {parameters}"] = "FP32", f'{{"inputs":[{tensor()}],"outputs":[{{"name":"OUT","parameters":{parameters}}}]}}'
    for name in ('"OTHER"', '""', "1", "null"):
        made[f"name {name}"] = "FP32", f'{{"inputs":[{tensor(name=name)}]}}'
    for datatype in ("", "fp32", "FP31", "INT32", "BYTES", "TYPE_FP32"):
        made[f"datatype {datatype}"] = "FP32", f'{{"inputs":[{tensor(datatype)}]}}'
    return made


FIELDS = {
    "bool_contents": [True, False], "int_contents": [-1, 300], "int64_contents": [-(2**40), 1], "uint_contents": [1, 300], "uint64_contents": [2**40, 1],
    "fp32_contents": [0.5, -1.0], "fp64_contents": [1e300, 0.25], "bytes_contents": [b"\xff", b""],
}  # fmt: skip
RAW_SIZES = (0, 1, 2, 4, 8, 9, 16)


def messages() -> dict[str, pb.ModelInferRequest]:
    made = {}

    def add(name: str, datatype: str, shape, contents=(), raw=()):
        request = pb.ModelInferRequest(model_name=f"form_{datatype.lower()}")
        given = request.inputs.add(name="IN", datatype=datatype, shape=shape)
        for field, values in contents:
            getattr(given.contents, field).extend(values)
        request.raw_input_contents.extend(raw)
        made[f"{datatype} {name}"] = request

    for datatype in DATATYPES:
        add("without contents", datatype, [2])
        add("empty", datatype, [0])
        add("raw contents twice", datatype, [2], raw=[text("", [b"a", b"b"]).raw] * 2 if datatype == "BYTES" else [bytes(2 * NUMPY[datatype]().itemsize)] * 2)
        for field, values in FIELDS.items():
            for count in (0, 1, 2, 3):
                add(f"{count} of {field}", datatype, [2], [(field, (values * 2)[:count])])
            add(f"{field} beside raw contents", datatype, [2], [(field, values)], [bytes(8)])
            add(f"{field} of an empty tensor", datatype, [0], [(field, values)])
        for size in RAW_SIZES:
            add(f"{size} raw bytes", datatype, [2], raw=[bytes(size)])
        for shape in ([], [2, 1], [-2], [-1], [1, 2], [2**62, 4], [2**31, 2**33]):
            add(f"shape {shape}", datatype, shape, raw=[text("", [b"a", b"b"]).raw if datatype == "BYTES" else bytes(2 * NUMPY[datatype]().itemsize)])
        for first, second in itertools.combinations(FIELDS, 2):
            add(f"{first} and {second}", datatype, [2], [(first, FIELDS[first]), (second, FIELDS[second])])
    return made


@pytest.fixture(scope="module")
def pair(launcher, tmp_path_factory):
    repository = tmp_path_factory.mktemp("messages") / "forms"
    for datatype in DATATYPES:
        folder = repository / f"form_{datatype.lower()}"
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(MODEL)
        kind = f"TYPE_{datatype}" if datatype != "BYTES" else "TYPE_STRING"
        (folder / "config.pbtxt").write_text(
            f'backend: "python"\ninput {{ name: "IN" data_type: {kind} dims: -1 }}\noutput {{ name: "OUT" data_type: {kind} dims: -1 }}\n'
        )
    with both_servers(launcher, repository) as found:
        yield found


def post(server, form):
    """The answer, or the status of the refusal."""
    datatype, body = form
    answer = http_call(server.http, "POST", f"/v2/models/form_{datatype.lower()}/infer", body)
    return answer.body if answer.status == 200 else answer.status


def send(server, request):
    with grpc_channel(server.grpc) as channel:
        try:
            answer = service_stub(channel).ModelInfer(request)
        except grpc.RpcError as error:
            return error.code().name
    return [(one.datatype, list(one.shape)) for one in answer.outputs], list(answer.raw_output_contents)


# Forms that begin so are answered differently, for these reasons.
BODIES_DIFFER = {
    "FP32 of 1844674407370955161": "2^64 is written as the shortest number that is read as the same",
    "FP64 of 1844674407370955161": "as above",
    "shape [] of": "a tensor without dimensions has one element. Triton's error, of the shape, is 400",
    "shape [4294967298] of": "the size is checked before the data: 400, as in newer Triton",
    "shape [9223372036854775808] of": "as above",
}


def test_requests_in_json(pair):
    check_same(bodies(), post, pair, BODIES_DIFFER)


def test_typed_and_raw_contents(pair):
    check_same(messages(), send, pair, {})
