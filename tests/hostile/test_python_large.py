"""Do 64 MiB go through a Python model inline, by region and by lease, over HTTP, gRPC, a stream and a session, and what is copied?"""

import queue

import numpy as np
import pytest
import python_catalogue
from clients import Given, GrpcClient, RequestedOutput, grpc_channel, service_stub
from passages import memory_of
from python_setup import PATIENT
from test_copies import copied, copying
from witness import PROTOCOLS, any_client

SIZE = 64 << 20
CONTENT = np.arange(SIZE // 4, dtype=np.uint32).tobytes()
# The JSON before an HTTP tensor comes with it.
HEAD_BYTES_MAX = 4096


@pytest.fixture(scope="module")
def engine(launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("counts its own copies only here")
    repository = launcher.copy_of("python_large")
    python_catalogue.put(repository, python_catalogue.named("py_identity"))
    socket = tmp_path_factory.mktemp("large") / "socket"
    with launcher.running("python_large", PATIENT, f"--session-socket={socket}", repository=repository) as found:
        found.session = socket
        yield found


def places(source, target) -> tuple[list[Given], list[RequestedOutput]]:
    given = Given("INPUT0", "FP32", [SIZE // 4], region=(source.name, SIZE, 0))
    return [given], [RequestedOutput("OUTPUT0", (target.name, SIZE, 0))]


@pytest.mark.parametrize("memory", ["region", "lease"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shared_memory_is_not_copied(engine, protocol, memory):
    with any_client(protocol, engine) as client, memory_of(memory, client, engine) as make:
        source, target = make(SIZE), make(SIZE)
        source.write(CONTENT)
        with copying(engine):
            client.infer("py_identity", *places(source, target))
        assert target.read(SIZE) == CONTENT


@pytest.mark.parametrize("memory", ["region", "lease"])
def test_shared_memory_is_not_copied_for_a_stream(engine, memory):
    with any_client("grpc", engine) as client, memory_of(memory, client, engine) as make:
        source, target = make(SIZE), make(SIZE)
        source.write(CONTENT)
        with copying(engine):
            answer = streamed(engine, *places(source, target))
        assert answer.raw_output_contents == [b""] and target.read(SIZE) == CONTENT


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
def test_an_inline_tensor_is_copied_from_the_message_to_the_process_and_back(engine, protocol):
    before = copied(engine)
    assert inline(engine, protocol, [Given("INPUT0", "FP32", [SIZE // 4], CONTENT)]) == CONTENT
    after = copied(engine)
    more = {reason: after[reason] - before.get(reason, 0) for reason in after}
    assert 0 <= more.pop("inline_request") - SIZE <= HEAD_BYTES_MAX
    assert {reason: bytes_ for reason, bytes_ in more.items() if bytes_} == {"model_process": SIZE, "inline_response": SIZE}


def inline(server, protocol: str, given) -> bytes:
    if protocol == "stream":
        (output,) = streamed(server, given).raw_output_contents
        return output
    with any_client(protocol, server) as client:
        return client.infer("py_identity", given).outputs["OUTPUT0"].raw


def streamed(server, given, outputs=()):
    """The only answer to a request over a stream."""
    with grpc_channel(server.grpc) as channel:
        sent = queue.Queue()
        sent.put(GrpcClient(channel).request("py_identity", given, outputs))
        call = service_stub(channel).ModelStreamInfer(iter(sent.get, None), timeout=240)
        answer = next(call)
        sent.put(None)
        assert not answer.error_message and list(call) == []
        return answer.infer_response
