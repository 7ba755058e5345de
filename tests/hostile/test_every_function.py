"""Does each function work that the Python, identity and ONNX Runtime backends import, and is its misuse an error?

A backend with AddressSanitizer calls them all: as the interface says, with NULL, with objects that it has given back, and with objects of another kind.
tests/backends/imported.txt has their names and who imports them: P is the Python backend, I identity, O ONNX Runtime, n the newest Python backend only.
"""

import collections

import pytest
from clients import fp32, open_client
from compiled_setup import SOURCES, compiled, environment, put
from test_compiled_sequences import SUM, Sequence
from test_sanitized_backends import OPTIONS, sanitizer

IMPORTED = dict(line.split() for line in (SOURCES / "imported.txt").read_text().splitlines())
# Those that return no error: what they make of wrong arguments is among the findings `good`.
PLAIN = {f"TRITONSERVER_{name}" for name in (
    "ErrorNew", "ErrorDelete", "ErrorCode", "ErrorCodeString", "ErrorMessage", "LogIsEnabled", "DataTypeString", "StringToDataType",
    "DataTypeByteSize", "MemoryTypeString", "InstanceGroupKindString", "ParameterNew", "ParameterBytesNew", "ParameterDelete")}  # fmt: skip
# Functions that none of them imports.
MORE = {f"TRITONBACKEND_{name}" for name in (
    "BackendExecutionPolicy", "BackendSetExecutionPolicy", "ModelInstanceIsPassive", "ModelInstanceProfileCount", "ModelInstanceSecondaryDeviceCount")
} | {f"TRITONSERVER_{name}" for name in (
    "BufferAttributesMemoryType", "BufferAttributesMemoryTypeId", "BufferAttributesByteSize", "BufferAttributesSetCudaIpcHandle", "GetMetricKind")}  # fmt: skip
# Those whose right use is tested elsewhere (tests/programs/requests.c), or that always fail.
MISUSED = {f"TRITONBACKEND_ModelInstance{name}" for name in ("ProfileName", "SecondaryDeviceProperties")} | {f"TRITONSERVER_{name}" for name in (
    "InferenceRequestAddRawInput", "InferenceRequestAppendInputDataWithBufferAttributes", "InferenceRequestAppendInputDataWithHostPolicy",
    "InferenceRequestCorrelationId", "InferenceRequestCorrelationIdString", "InferenceRequestFlags", "InferenceRequestId",
    "InferenceRequestIsCancelled", "InferenceRequestPriority", "InferenceRequestPriorityUInt64", "InferenceRequestRemoveAllInputData",
    "InferenceRequestRemoveAllInputs", "InferenceRequestRemoveAllRequestedOutputs", "InferenceRequestRemoveInput",
    "InferenceRequestRemoveRequestedOutput", "InferenceRequestSetDoubleParameter", "InferenceRequestSetPriority",
    "InferenceRequestSetPriorityUInt64", "InferenceRequestTimeoutMicroseconds", "ResponseAllocatorSetBufferAttributesFunction")}  # fmt: skip
INVALID_ARG = "3"
TRIED = (set(IMPORTED) | MORE | MISUSED) - PLAIN
# A NULL is nothing to delete, as in Triton.
DELETE_NULL = (
    "TRITONBACKEND_ResponseDelete", "TRITONBACKEND_ResponseFactoryDelete", "TRITONSERVER_BufferAttributesDelete", "TRITONSERVER_InferenceRequestDelete",
    "TRITONSERVER_InferenceResponseDelete", "TRITONSERVER_MessageDelete", "TRITONSERVER_MetricArgsDelete", "TRITONSERVER_ResponseAllocatorDelete",
)  # fmt: skip
OTHERWISE = {("null", name): "succeeds" for name in DELETE_NULL}


@pytest.fixture(params=["server", "process"])
def every(request: pytest.FixtureRequest, launcher):
    """In the server's process, and in one of its own."""
    if launcher.oracle:
        pytest.skip("Triton does not survive it")
    repository, backends = launcher.scratch / f"every_{request.param}", launcher.scratch / f"every_{request.param}_backends"
    folder = put(repository, "every", backend="every", more=SUM)
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "ten").write_bytes(bytes(4))
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('"OUT" data_type: TYPE_FP32', '"OUT" data_type: TYPE_STRING'))
    put(repository, "plain", "tell")
    for source in ("every", "sample"):
        compiled(backends / source / f"libtriton_{source}.so", source=source, flags=("-g", "-fsanitize=address"))
    flags = [f"--backend-directory={backends}", "--model-control-mode=explicit", "--load-model=*", "--trace-config=rate=1",
             "--trace-config=level=TIMESTAMPS", f"--trace-config=triton,file={launcher.scratch}/every_{request.param}.json"]  # fmt: skip
    if request.param == "process":
        flags.append("--backend-config=every,isolated=true")
    # Memory that there is not is refused by the server, and not by the sanitizer.
    with environment(LD_PRELOAD=sanitizer(), ASAN_OPTIONS=OPTIONS + ":allocator_may_return_null=1"):
        with launcher.running(f"every_{request.param}", *flags, repository=repository) as found:
            found.is_isolated = request.param == "process"
            yield found


def findings(server) -> list[list[str]]:
    """What the backend has found after three requests. The last one tells what came after the answer to the one before."""
    with open_client("http", server) as client:
        for at in range(3):
            one = Sequence(client, "every")
            parameters = {"sequence_id": "by name" if at == 1 else one.number, "sequence_start": True, "sequence_end": True,
                    "timeout": 60_000_000, "names": " ".join(sorted(TRIED))}  # fmt: skip
            reply = client.infer("every", [fp32("IN", [1, 2, 3, 4])], id="mine", parameters=parameters)
    return [line.split(" ", 2) for line in reply.outputs["OUT"].raw[4:].decode().splitlines()]


def test_every_function_works_and_refuses_misuse(every):
    assert collections.Counter("".join(IMPORTED.values())) == {"P": 121, "I": 72, "O": 68, "n": 6}
    found = findings(every)
    wrong = [" ".join(line) for line in found if line[0] in ("wrong", "missing")]
    assert wrong == []
    called = {line[1] for line in found if line[0] == "good"}
    # Requests of a process of its own have no trace.
    untraced = {f"TRITONSERVER_InferenceTrace{name}" for name in ("ReportActivity", "Context")} if every.is_isolated else set()
    assert (set(IMPORTED) | MORE) - called == untraced
    tried = {(how, name): result for how, name, *rest in found if how in ("null", "gone", "other") for result in rest}
    assert {name for how, name in tried if how == "null"} == TRIED
    assert {name for how, name in tried if how == "gone"} == {name for how, name in tried if how == "other"}
    assert len({name for how, name in tried if how == "gone"}) > 100
    if every.is_isolated:
        # The trace that it never had is NULL, which has no child.
        assert tried.pop(("gone", "TRITONSERVER_InferenceTraceSpawnChildTrace")) == "succeeds"
    assert {key: result for key, result in tried.items() if result != OTHERWISE.get(key, INVALID_ARG)} == {}
    assert "ERROR: AddressSanitizer" not in every.log_text()
