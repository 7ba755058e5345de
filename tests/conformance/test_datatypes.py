"""Does every datatype pass unchanged, however it is sent?"""

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from catalogue import DATATYPES
from clients import NUMPY, HttpClient
from regions import registered
from tritonclient.utils import serialize_byte_tensor

LONG = 300


def sample(datatype: str) -> np.ndarray:
    """Values at the edges of the type, then many more."""
    rng = np.random.default_rng(5)
    if datatype == "BYTES":
        edges = [b"", b"a", b"\x00", "grün ✓".encode(), b"x" * 5000]
        return np.array(edges + [bytes(rng.integers(97, 123, n % 9)) for n in range(LONG)], dtype=object)
    if datatype == "BOOL":
        return rng.integers(0, 2, LONG).astype(np.bool_)
    if datatype == "BF16":
        return np.array([0.0, -0.0, 1.0, -2.5, 2.0**100, 2.0**-100, np.inf, -np.inf, np.nan], NUMPY["BF16"])
    kind = NUMPY[datatype]
    if datatype.startswith("FP"):
        facts = np.finfo(kind)
        edges = [0.0, -0.0, facts.max, facts.min, facts.tiny, facts.smallest_subnormal, np.inf, -np.inf, np.nan, 0.1]
        return np.concatenate([np.array(edges, kind), rng.standard_normal(LONG).astype(kind)])
    facts = np.iinfo(kind)
    return np.concatenate([np.array([facts.min, facts.max, 0], kind),
                           rng.integers(facts.min, facts.max, LONG, dtype=kind, endpoint=True)])  # fmt: skip


def raw_form(datatype: str, array: np.ndarray) -> bytes:
    if datatype == "BYTES":
        return serialize_byte_tensor(array).item()
    return array.tobytes()


def same(datatype: str, found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert raw_form(datatype, found) == raw_form(datatype, wanted)


@pytest.fixture(scope="module", params=["identity", "onnx_identity"])
def server_and_prefix(request):
    """The server and the first part of its models' names: the built-in backend, and ONNX graphs on ONNX Runtime."""
    return request.getfixturevalue("server" if request.param == "identity" else "onnx_server"), request.param


@pytest.fixture(scope="module")
def triton_clients(server_and_prefix):
    server, _ = server_and_prefix
    with (
        httpclient.InferenceServerClient(server.http) as http,
        grpcclient.InferenceServerClient(server.grpc) as grpc,
    ):
        yield {"http": (http, httpclient), "grpc": (grpc, grpcclient)}


@pytest.fixture(scope="module")
def model_of(server_and_prefix):
    return lambda datatype: f"{server_and_prefix[1]}_{datatype.lower()}"


# FP16 and BF16 have no JSON form.
INLINE = [(way, one) for way in ("http json", "http binary", "grpc raw") for one in DATATYPES if way != "http json" or one not in ("FP16", "BF16")]


@pytest.mark.parametrize(("way", "datatype"), INLINE)
def test_inline(triton_clients, model_of, datatype, way):
    protocol, form = way.split()
    triton_client, library = triton_clients[protocol]
    array = sample(datatype)
    if form == "json" and datatype == "BYTES":
        array = np.array([one for one in array if b"\x00" not in one], dtype=object)
    given = library.InferInput("INPUT0", list(array.shape), datatype)
    binary = {"binary_data": form == "binary"} if protocol == "http" else {}
    given.set_data_from_numpy(array, **binary)
    wanted = library.InferRequestedOutput("OUTPUT0", **binary)
    result = triton_client.infer(model_of(datatype), [given], outputs=[wanted])
    found = result.as_numpy("OUTPUT0")
    if form == "json" and datatype == "BYTES":
        found = np.array([one.encode() if isinstance(one, str) else one for one in found], dtype=object)
    if form == "json" and datatype.startswith("FP"):
        # JSON keeps no NaN payload, and 2.51 reads some decimals one unit in the last place off.
        assert np.allclose(found, array, rtol=1e-15, atol=0, equal_nan=True)
        return
    same(datatype, found, array)


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_shared_memory(server_and_prefix, triton_clients, model_of, datatype, protocol):
    triton_client, library = triton_clients[protocol]
    array = sample(datatype)
    raw = raw_form(datatype, array)
    client = HttpClient(server_and_prefix[0].http)
    with registered(client, len(raw), raw) as source, registered(client, len(raw) + 7) as target:
        given = library.InferInput("INPUT0", list(array.shape), datatype)
        given.set_shared_memory(source.name, len(raw))
        wanted = library.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(target.name, len(raw) + 7)
        result = triton_client.infer(model_of(datatype), [given], outputs=[wanted])
        entry = result.get_output("OUTPUT0")
        shape = entry["shape"] if protocol == "http" else list(entry.shape)
        assert shape == list(array.shape)
        assert target.read(len(raw)) == raw


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("datatype", [one for one in DATATYPES if one != "BYTES"])
def test_empty(triton_clients, model_of, datatype, protocol):
    triton_client, library = triton_clients[protocol]
    given = library.InferInput("INPUT0", [0], datatype)
    given.set_data_from_numpy(np.zeros(0, NUMPY[datatype]))
    result = triton_client.infer(model_of(datatype), [given])
    assert result.as_numpy("OUTPUT0").shape == (0,)
