"""Is a model or region found whose name is percent-encoded in a path?

Triton looks for the encoded name, so its own client, which encodes names, does not reach such a model there.
"""

import numpy as np
import pytest
import tritonclient.http as httpclient
from clients import http_call, open_client
from regions import region

SPACED = "a b <i>é"
# A name that looks encoded, and the name that it would stand for.
ENCODED, DECODED = "c%20d", "c d"


def config(max_batch_size: int) -> str:
    return f"""backend: "identity" max_batch_size: {max_batch_size}
        input {{ name: "INPUT0" data_type: TYPE_FP32 dims: -1 }} output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }}"""


@pytest.fixture(scope="module")
def server(launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("2.51 looks for the encoded name")
    repository = tmp_path_factory.mktemp("encoded_names")
    for rows, name in enumerate((SPACED, ENCODED, DECODED)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config(rows))
    flags = ["--model-control-mode=explicit", "--load-model=*"]
    with launcher.running("encoded_names", *flags, repository=repository) as found:
        yield found


@pytest.fixture
def client(server):
    with httpclient.InferenceServerClient(server.http) as found:
        yield found


def test_the_client_that_encodes_names_reaches_the_model(client):
    assert client.is_model_ready(SPACED)
    assert client.get_model_metadata(SPACED)["name"] == SPACED
    assert client.get_model_config(SPACED)["name"] == SPACED
    assert client.get_inference_statistics(SPACED)["model_stats"][0]["name"] == SPACED
    given = httpclient.InferInput("INPUT0", [1], "FP32")
    given.set_data_from_numpy(np.float32([1.5]))
    assert client.infer(SPACED, [given]).as_numpy("OUTPUT0").tolist() == [1.5]


def test_it_is_unloaded_and_loaded(client):
    client.unload_model(SPACED)
    assert not client.is_model_ready(SPACED)
    client.load_model(SPACED)
    assert client.is_model_ready(SPACED)


def test_a_model_of_the_encoded_name_comes_first(server):
    found = http_call(server.http, "GET", f"/v2/models/{ENCODED}/config").ok().json
    assert (found["name"], found["max_batch_size"]) == (ENCODED, 1)


@pytest.mark.parametrize("name", ["nobody%20here", "%", "%FF", "%2E%2E", "a%20b%2F.."])
def test_another_name_is_unknown_as_it_was_written(server, name):
    http_call(server.http, "GET", f"/v2/models/{name}").refused("NOT_FOUND", f"Request for unknown model: '{name}' is not found")
    assert http_call(server.http, "POST", f"/v2/repository/models/{name}/load", {}).error.startswith(f"failed to load '{name}',")


@pytest.mark.parametrize("name", [SPACED, ENCODED, "a+b?c#d", "5%"])
def test_a_region_has_the_name_that_the_client_gave(server, client, name):
    with region(8) as made, open_client("grpc", server) as other:
        client.register_system_shared_memory(name, made.key, 8)
        assert [one["name"] for one in client.get_system_shared_memory_status(name)] == [name]
        assert [one["name"] for one in other.status("system")] == [name]
        # An inference names the region without encoding.
        given = httpclient.InferInput("INPUT0", [1, 1], "FP32")
        given.set_data_from_numpy(np.float32([[1.5]]))
        wanted = httpclient.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(name, 4, offset=4)
        client.infer(ENCODED, [given], outputs=[wanted])
        assert np.frombuffer(made.read(4, 4), np.float32) == [1.5]
        client.unregister_system_shared_memory(name)
        assert not other.status("system")


def test_the_name_of_a_cuda_region_is_decoded_too(server):
    refused = http_call(server.http, "GET", "/v2/cudasharedmemory/region/a%20b/status")
    assert refused.error.startswith("Unable to find cuda shared memory region: 'a b'")
