"""Do NVIDIA's four Python clients work, with every call they have?"""

import asyncio
import inspect
import json

import numpy as np
import pytest
import tritonclient.grpc as grpc_sync
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_sync
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

FLAVOURS = {
    "http": (http_sync, http_sync, "http"),
    "http.aio": (http_aio, http_sync, "http"),
    "grpc": (grpc_sync, grpc_sync, "grpc"),
    "grpc.aio": (grpc_aio, grpc_sync, "grpc"),
}


class Client:
    """A client whose calls are awaited when they have to be, so that one test serves all four."""

    def __init__(self, flavour: str, server):
        module, self.library, self.protocol = FLAVOURS[flavour]
        self.loop = asyncio.new_event_loop()
        self.asynchronous = flavour.endswith("aio")
        url = getattr(server, self.protocol)

        async def make():
            return module.InferenceServerClient(url)

        self.inner = self.loop.run_until_complete(make()) if self.asynchronous else module.InferenceServerClient(url)

    def __getattr__(self, name):
        def call(*args, **more):
            async def run():
                found = getattr(self.inner, name)(*args, **more)
                return await found if inspect.isawaitable(found) else found

            return self.loop.run_until_complete(run()) if self.asynchronous else getattr(self.inner, name)(*args, **more)

        return call

    def shut(self):
        self.close()
        self.loop.close()

    def given(self, name: str, array: np.ndarray, datatype: str):
        made = self.library.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array)
        return made

    def plain(self, answer):
        """A gRPC message as the dictionary that the HTTP client gives."""
        from google.protobuf import json_format
        from google.protobuf.message import Message

        return json_format.MessageToDict(answer, preserving_proto_field_name=True) if isinstance(answer, Message) else answer


@pytest.fixture(params=FLAVOURS)
def client(request, server):
    made = Client(request.param, server)
    yield made
    made.shut()


def pair(client) -> list:
    a, b = np.arange(16, dtype=np.int32).reshape(1, 16), np.full((1, 16), 2, np.int32)
    return [client.given("INPUT0", a, "INT32"), client.given("INPUT1", b, "INT32")]


def test_health(client):
    assert client.is_server_live() is True
    assert client.is_model_ready("simple") is True
    assert client.is_model_ready("nobody") is False
    assert client.is_server_ready() in (True, False)


def test_metadata_config_index_statistics(client):
    assert client.plain(client.get_server_metadata())["name"] == "triton"
    assert client.plain(client.get_model_metadata("simple"))["inputs"][0]["name"] == "INPUT0"
    config = client.plain(client.get_model_config("simple"))
    assert config.get("config", config)["max_batch_size"] == 8
    index = client.plain(client.get_model_repository_index())
    assert "simple" in {one["name"] for one in (index if isinstance(index, list) else index["models"])}
    found = client.plain(client.get_inference_statistics("simple"))
    assert found["model_stats"][0]["name"] == "simple"
    assert client.plain(client.get_trace_settings())
    assert client.plain(client.get_log_settings())


def test_the_classic_example(client):
    outputs = [client.library.InferRequestedOutput(f"OUTPUT{i}") for i in range(2)]
    result = client.infer("simple", pair(client), outputs=outputs, request_id="1")
    assert result.as_numpy("OUTPUT0").tolist() == [list(range(2, 18))]
    assert result.as_numpy("OUTPUT1").tolist() == [list(range(-2, 14))]
    response = client.plain(result.get_response())
    assert response["id"] == "1"


def test_the_classic_example_without_outputs(client):
    result = client.infer("simple", pair(client))
    assert result.as_numpy("OUTPUT1").dtype == np.int32
    assert result.as_numpy("nothing") is None


def test_the_classic_example_in_shared_memory(client):
    arrays = [np.arange(16, dtype=np.int32), np.full(16, 2, np.int32)]
    key = f"/nerite_client_{client.protocol}_{client.asynchronous}"
    source = shm.create_shared_memory_region("source", f"{key}_in", 128)
    target = shm.create_shared_memory_region("target", f"{key}_out", 128)
    try:
        shm.set_shared_memory_region(source, arrays)
        client.register_system_shared_memory("source", f"{key}_in", 128)
        client.register_system_shared_memory("target", f"{key}_out", 128)
        status = client.plain(client.get_system_shared_memory_status())
        assert "source" in json.dumps(status)
        inputs, outputs = [], []
        for number in range(2):
            inputs.append(client.library.InferInput(f"INPUT{number}", [1, 16], "INT32"))
            inputs[-1].set_shared_memory("source", 64, offset=64 * number)
            outputs.append(client.library.InferRequestedOutput(f"OUTPUT{number}"))
            outputs[-1].set_shared_memory("target", 64, offset=64 * number)
        client.infer("simple", inputs, outputs=outputs)
        for number, wanted in enumerate((arrays[0] + 2, arrays[0] - 2)):
            found = shm.get_contents_as_numpy(target, np.int32, [1, 16], offset=64 * number)
            assert found.tolist() == [wanted.tolist()]
        client.unregister_system_shared_memory("source")
        client.unregister_system_shared_memory()
        assert "target" not in json.dumps(client.plain(client.get_system_shared_memory_status()))
        client.unregister_cuda_shared_memory()
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(source)
        shm.destroy_shared_memory_region(target)


def test_classes(client):
    given = client.given("INPUT0", np.array([[0.1, 0.9, 0.2, 0.3]], np.float32), "FP32")
    requested = client.library.InferRequestedOutput("OUTPUT0", class_count=1)
    found = client.infer("classes", [given], outputs=[requested]).as_numpy("OUTPUT0")
    assert found.tolist() == [[b"0.900000:1:beech"]]


def test_errors_carry_status_and_text(client):
    with pytest.raises(InferenceServerException) as caught:
        client.infer("nobody", pair(client))
    assert "Request for unknown model: 'nobody' is not found" in caught.value.message()
    assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")


def test_compression(client):
    if client.protocol == "http":
        more = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}
    else:
        more = {"compression_algorithm": "gzip"}
    result = client.infer("simple", pair(client), **more)
    assert result.as_numpy("OUTPUT0").tolist() == [list(range(2, 18))]


def test_request_parameters_and_headers(client):
    result = client.infer(
        "simple", pair(client), request_id="x", priority=1, timeout=10_000_000, parameters={"mine": 1, "other": "y"},
        headers={"x-mine": "z"},
    )  # fmt: skip
    assert result.as_numpy("OUTPUT0") is not None


def test_a_sequence(client):
    values = [np.array([[n]], np.int32) for n in range(3)]
    for number, array in enumerate(values):
        given = client.given("INPUT0", array, "INT32")
        flags = {"sequence_start": number == 0, "sequence_end": number == 2}
        result = client.infer("sequence_int32", [given], sequence_id=5000, **flags)
        assert result.as_numpy("OUTPUT0").tolist() == [[number]]


def test_concurrent_requests(server):
    with http_sync.InferenceServerClient(server.http, concurrency=8) as client:
        made = Client("http", server)
        inputs = pair(made)
        pending = [client.async_infer("simple", inputs) for _ in range(64)]
        assert all(one.get_result().as_numpy("OUTPUT0") is not None for one in pending)
        made.shut()


def test_settings_can_be_written(client):
    before = client.plain(client.get_log_settings())
    client.update_log_settings({"log_verbose_level": 1})
    after = client.update_log_settings({"log_verbose_level": 0})
    assert client.plain(after) == before
    client.update_trace_settings(settings={"trace_rate": "5"})
    client.update_trace_settings(settings={"trace_rate": None})
