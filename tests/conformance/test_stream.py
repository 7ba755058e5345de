"""Does the gRPC stream keep order, flags and errors apart, and does cancelling work?"""

import queue
import threading
import time

import grpc
import pytest
from clients import TIMEOUT_S, GrpcClient, fp32, grpc_channel, int32, pb, service_stub


class Stream:
    """A stream that is fed one request at a time."""

    def __init__(self, stub, metadata=()):
        self.sent = queue.Queue()
        self.call = stub.ModelStreamInfer(iter(self.sent.get, None), timeout=TIMEOUT_S, metadata=metadata)

    def send(self, *requests) -> "Stream":
        for request in requests:
            self.sent.put(request)
        return self

    def close(self) -> "Stream":
        self.sent.put(None)
        return self

    def all(self) -> list:
        return list(self.close().call)


@pytest.fixture
def stream(server):
    with grpc_channel(server.grpc) as channel:
        made = Stream(service_stub(channel))
        yield made
        made.close()
        made.call.cancel()


@pytest.fixture
def request_of(server):
    with grpc_channel(server.grpc) as channel:
        yield GrpcClient(channel).request


def identity(request_of, value: float, id: str, model: str = "identity_fp32", **parameters):
    return request_of(model, [fp32("INPUT0", [value])], id=id, parameters=parameters)


def repeat(request_of, values, delay_ms: int = 0, id: str = "r", **parameters):
    from clients import Given
    import numpy as np

    delays = np.full(len(values), delay_ms, np.uint32)
    inputs = [int32("IN", values), Given("DELAY", "UINT32", [len(values)], delays.tobytes())]
    return request_of("repeat_int32", inputs, id=id, parameters=parameters)


def final(answer) -> bool:
    return answer.infer_response.parameters["triton_final_response"].bool_param


def test_answers_come_in_the_order_of_the_requests(stream, request_of):
    requests = [identity(request_of, n, str(n), "slow_fp32" if n == 0 else "identity_fp32") for n in range(5)]
    found = stream.send(*requests).all()
    assert [one.infer_response.id for one in found] == [str(n) for n in range(5)]
    assert all(final(one) and not one.error_message for one in found)
    assert [one.infer_response.raw_output_contents[0] for one in found] == [fp32("", [n]).raw for n in range(5)]


def test_an_empty_stream_ends_well(stream):
    assert stream.all() == []
    assert stream.call.code() == grpc.StatusCode.OK


def test_errors_do_not_end_the_stream(stream, request_of):
    requests = [
        identity(request_of, 1, "good"),
        identity(request_of, 1, "unknown", "nobody"),
        request_of("identity_fp32", [int32("INPUT0", [1])], id="wrong"),
        identity(request_of, 2, "again"),
    ]
    found = {one.infer_response.id: one for one in stream.send(*requests).all()}
    assert set(found) == {"good", "unknown", "wrong", "again"}
    assert found["unknown"].error_message.startswith("Request for unknown model: 'nobody' is not found")
    assert found["wrong"].error_message.startswith("[request id: wrong] inference input 'INPUT0' data-type is 'INT32'")
    assert found["again"].infer_response.raw_output_contents[0] == fp32("", [2]).raw
    assert stream.call.code() == grpc.StatusCode.OK


@pytest.mark.parametrize("metadata", [(), (("triton_grpc_error", "true"),)])
def test_a_request_that_no_queue_takes_is_told_by_its_id_and_the_stream_goes_on(server, request_of, metadata):
    def step(id: str, **parameters):
        return request_of("sequence_int32", [int32("INPUT0", [[7]])], id=id, parameters=parameters)

    with grpc_channel(server.grpc) as channel:
        stream = Stream(service_stub(channel), metadata=metadata)
        # Without a sequence, in one without a start, and a whole one.
        requests = [step("none"), step("late", sequence_id=9_901), step("whole", sequence_id=9_901, sequence_start=True, sequence_end=True)]
        found = {one.infer_response.id: one for one in stream.send(*requests).all()}
        assert stream.call.code() == grpc.StatusCode.OK
    assert found["none"].error_message.startswith("inference request to model 'sequence_int32' must specify a non-zero or non-empty correlation ID")
    assert found["late"].error_message.startswith("inference request for sequence 9901 to model 'sequence_int32' must specify the START flag")
    for id in ("none", "late"):
        assert found[id].infer_response == pb.ModelInferResponse(id=id)
    assert not found["whole"].error_message and final(found["whole"])


def test_a_faulty_flag(stream, request_of):
    requests = identity(request_of, 1, "x", triton_enable_empty_final_response=5)
    (found,) = stream.send(requests).all()
    text = "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param."
    assert found.error_message.startswith(text)


def test_regions_over_a_stream(server, stream, request_of):
    from clients import Given, HttpClient, RequestedOutput
    from regions import registered

    with registered(HttpClient(server.http), 64, fp32("", [1, 2]).raw) as made:
        given = Given("INPUT0", "FP32", [2], region=(made.name, 8, 0))
        small, fits = RequestedOutput("OUTPUT0", (made.name, 4, 16)), RequestedOutput("OUTPUT0", (made.name, 8, 32))
        requests = [request_of("identity_fp32", [given], [one], id=id) for one, id in ((small, "small"), (fits, "fits"))]
        found = stream.send(*requests).all()
        assert found[0].error_message.startswith(
            "shared memory size specified with the request for output 'OUTPUT0' (4 bytes) should be at least 8 bytes"
        )
        assert list(found[1].infer_response.raw_output_contents) == [b""]
        assert made.read(8, 32) == made.read(8)


def test_many_requests_on_one_stream(stream, request_of):
    requests = [identity(request_of, n, str(n)) for n in range(500)]
    found = stream.send(*requests).all()
    assert [one.infer_response.id for one in found] == [str(n) for n in range(500)]


def test_a_decoupled_model_answers_many_times(stream, request_of, needs_model):
    needs_model("repeat_int32")
    found = stream.send(repeat(request_of, [4, 5, 6])).all()
    assert [one.infer_response.raw_output_contents[0] for one in found] == [int32("", [n]).raw for n in (4, 5, 6)]
    assert not any(one.error_message for one in found)
    assert {one.infer_response.id for one in found} == {"r"}


def test_no_answer_at_all_unless_asked_for(stream, request_of, needs_model):
    needs_model("repeat_int32")
    assert stream.send(repeat(request_of, [])).all() == []


def test_the_empty_final_answer(stream, request_of, needs_model):
    needs_model("repeat_int32")
    found = stream.send(repeat(request_of, [8], triton_enable_empty_final_response=True)).all()
    assert [final(one) for one in found] == [False, True]
    last = found[-1].infer_response
    assert (last.id, last.model_name, last.model_version) == ("r", "repeat_int32", "")
    assert not last.outputs and not last.raw_output_contents


def test_a_grpc_error_ends_the_stream_when_asked_for(server, request_of):
    from clients import Given, HttpClient, RequestedOutput
    from regions import registered

    with grpc_channel(server.grpc) as channel, registered(HttpClient(server.http), 64) as made:
        stream = Stream(service_stub(channel), metadata=(("triton_grpc_error", "true"),))
        small = RequestedOutput("OUTPUT0", (made.name, 4, 16))
        stream.send(request_of("identity_fp32", [Given("INPUT0", "FP32", [2], bytes(8))], [small], id="x"))
        with pytest.raises(grpc.RpcError) as caught:
            stream.all()
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert caught.value.details().startswith("shared memory size specified with the request for output 'OUTPUT0'")


def test_cancelling_a_stream_ends_it(stream, request_of):
    stream.send(identity(request_of, 1, "slow", "slow_fp32"))
    threading.Timer(0.1, stream.call.cancel).start()
    with pytest.raises(grpc.RpcError) as caught:
        list(stream.call)
    assert caught.value.code() == grpc.StatusCode.CANCELLED


def test_cancelling_a_call_leaves_the_server_well(server, stub, request_of):
    cancelled = 0
    while cancelled < 3:
        future = stub.ModelInfer.future(identity(request_of, 1, "slow", "slow_fp32"))
        time.sleep(0.05)
        # Where this machine is slow the answer may have been quicker.
        cancelled += future.cancel()
    answer = stub.ModelInfer(identity(request_of, 2, "after", "slow_fp32"), timeout=TIMEOUT_S)
    assert answer.id == "after"


def test_a_deadline_that_passes(stub, request_of):
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(identity(request_of, 1, "late", "slow_fp32"), timeout=0.1)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_the_client_librarys_stream(server):
    import numpy as np
    import tritonclient.grpc as grpcclient

    found = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: found.put((result, error)))
        given = grpcclient.InferInput("INPUT0", [2], "FP32").set_data_from_numpy(np.array([1, 2], np.float32))
        client.async_stream_infer("identity_fp32", [given], request_id="a")
        client.async_stream_infer("nobody", [given], request_id="b")
        answers = [found.get(timeout=TIMEOUT_S) for _ in range(2)]
        client.stop_stream()
    good = [result for result, error in answers if error is None]
    bad = [error for _, error in answers if error is not None]
    assert good[0].as_numpy("OUTPUT0").tolist() == [1, 2]
    assert "unknown model: 'nobody'" in bad[0].message()


def test_pb_has_the_fields_of_the_contract():
    """A guard on the client pinned in requirements.txt: its message is the one spoken here."""
    assert {field.name for field in pb.ModelStreamInferResponse.DESCRIPTOR.fields} == {"error_message", "infer_response"}
