"""Does a client whose answers take long to make or to write keep a thread that serves others?"""

import json

import numpy as np
import pytest
import python_catalogue
from busy import front_threads_come_back
from clients import Given, RequestedOutput, http_call, http_infer, open_client
from python_setup import PATIENT
from regions import Region

# Inputs of less than 1 MiB run on front threads where runs of this size were quick, and there are as many elements as are classified.
ELEMENTS = 1_000_000
QUICK_RUNS = 8
# More than a front thread unregisters in one call.
REGIONS = 1000
PROTOCOLS = ["http", "grpc"]
# In the server, and in a process whose answers front threads take over.
MODELS = [("identity_uint8", "INPUT0", "OUTPUT0"), ("py_types", "INPUT_UINT8", "OUTPUT_UINT8")]


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 sorts them on the threads that answer, too")
    repository = launcher.copy_of("rendering", "identity_uint8", "identity_fp32")
    python_catalogue.put(repository, python_catalogue.named("py_types"))
    with launcher.running("rendering", PATIENT, "--http-thread-count=1", repository=repository) as found:
        yield found


@pytest.mark.parametrize(("model", "given", "made"), MODELS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_million_elements_are_all_turned_into_classes(server, protocol, model, given, made):
    values = np.arange(ELEMENTS, dtype=np.uint64).astype(np.uint8)

    def classes(count: int) -> bytes:
        wanted = RequestedOutput(made, parameters={"classification": count})
        return client.infer(model, [Given(given, "UINT8", [ELEMENTS], values.tobytes())], [wanted]).outputs[made].raw

    with open_client(protocol, server) as client:
        for _ in range(QUICK_RUNS):
            assert classes(1)[4:] == b"255:255"
        with front_threads_come_back(server):
            found = classes(ELEMENTS)
    best = b"".join(len(text).to_bytes(4, "little") + text for text in (b"255:%d" % (255 + 256 * n) for n in range(1000)))
    assert found.startswith(best) and found.endswith(b"0:999936")


@pytest.mark.parametrize("path", ["infer", "generate"])
def test_an_id_of_characters_that_are_escaped(server, path):
    name = "\x01" * (1 << 20)
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}
    document = {"id": name, "inputs": [tensor]} if path == "infer" else {"id": name, "INPUT0": 1}
    with front_threads_come_back(server):
        answer = http_infer(server.http, "identity_fp32", document, path=path)
    assert json.loads(answer.body)["id"] == name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_thousands_of_regions_are_listed_and_unregistered_together(server, protocol):
    made = Region(4096)
    try:
        with open_client(protocol, server) as client, front_threads_come_back(server):
            for at in range(REGIONS):
                client.register_system(f"{protocol}_{at}", made.key, 4096)
            assert len(client.status("system")) == REGIONS
            client.unregister("system")
            assert len(client.status("system")) == 0
            http_call(server.http, "POST", "/v2/cudasharedmemory/unregister").ok()
    finally:
        made.close()
