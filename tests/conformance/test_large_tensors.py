"""Do tensors of nearly 2 GiB, the most that gRPC can carry, go through both protocols with one copy in and none out?"""

import http.client
import json
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from clients import http_call
from footprint import resident_mib

BYTE_SIZE = 1920 << 20
PIECE = np.arange(1 << 20, dtype=np.uint32).view(np.uint8)
RESIDENT_MIB_MAX = 100
SETTLE_S = 60
# The JSON before an HTTP tensor comes with it.
HEAD_BYTES_MAX = 4096

# Six times the tensor goes through this process, which a busy machine takes its time for.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def roomy(launcher):
    if launcher.oracle:
        pytest.skip("2.51 is not given so much memory here")
    repository = launcher.copy_of("roomy", "identity_uint8")
    with launcher.running("roomy", f"--http-max-input-size={BYTE_SIZE + 4096}", repository=repository) as found:
        yield found


@pytest.fixture(autouse=True)
def copied_once_and_given_back(roomy):
    """The tensor is copied at most once on the way in and once by the model, and nothing of it stays."""
    before = copied(roomy)
    yield
    after = copied(roomy)
    grown = {reason: after[reason] - before[reason] for reason in after if after[reason] != before[reason]}
    assert grown.pop("model") == BYTE_SIZE
    assert set(grown) <= {"inline_request"} and sum(grown.values()) <= BYTE_SIZE + HEAD_BYTES_MAX
    until = time.monotonic() + SETTLE_S
    while resident_mib(roomy.pid) > RESIDENT_MIB_MAX and time.monotonic() < until:
        time.sleep(0.2)
    assert resident_mib(roomy.pid) <= RESIDENT_MIB_MAX


def copied(server) -> dict[str, int]:
    """Bytes copied so far, by reason."""
    found = {}
    for line in http_call(server.metrics, "GET", "/metrics").body.decode().splitlines():
        if line.startswith("nerite_copied_bytes_total{"):
            name, number = line.split(" ")
            found[name.split('"')[1]] = int(float(number))
    return found


def test_http(roomy):
    head = json.dumps({
        "inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [BYTE_SIZE], "parameters": {"binary_data_size": BYTE_SIZE}}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }).encode()  # fmt: skip
    pieces = BYTE_SIZE // PIECE.nbytes
    connection = http.client.HTTPConnection(roomy.http, timeout=900)
    connection.putrequest("POST", "/v2/models/identity_uint8/infer")
    connection.putheader("Inference-Header-Content-Length", str(len(head)))
    connection.putheader("Content-Length", str(len(head) + BYTE_SIZE))
    connection.endheaders(head)
    for _ in range(pieces):
        connection.send(PIECE.data)
    answer = connection.getresponse()
    described = json.loads(answer.read(int(answer.getheader("Inference-Header-Content-Length"))))
    assert described["outputs"][0]["shape"] == [BYTE_SIZE]
    found = np.empty_like(PIECE)
    for _ in range(pieces):
        at = 0
        while at < found.nbytes:
            count = answer.readinto(memoryview(found)[at:])
            assert count, "the answer ends too early"
            at += count
        assert np.array_equal(found, PIECE)
    assert not answer.read()
    connection.close()


def test_grpc(roomy):
    data = np.tile(PIECE, BYTE_SIZE // PIECE.nbytes)
    given = grpcclient.InferInput("INPUT0", [BYTE_SIZE], "UINT8")
    given.set_data_from_numpy(data)
    with grpcclient.InferenceServerClient(roomy.grpc) as client:
        result = client.infer("identity_uint8", [given])
    assert np.array_equal(result.as_numpy("OUTPUT0"), data)
