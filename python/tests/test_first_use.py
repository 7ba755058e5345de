"""Does what a new user tries by `help(nerite)` work, or say what to do instead?"""

import asyncio
import multiprocessing
import pathlib
import pickle

import numpy as np
import pytest
from test_call import connected
from test_call_lost import Counts, made_server  # noqa: F401
from tritonclient.utils import InferenceServerException

import nerite
from nerite import _convert


@pytest.fixture
def client(launcher):
    with connected(launcher.get("nerite"), "session") as made:
        yield made


PAIR = np.ones((1, 16), np.int32)


def test_one_output_may_be_named_without_a_list(client):
    simple = client.model("simple")
    assert list(simple(PAIR, PAIR, outputs="OUTPUT1").keys()) == ["OUTPUT1"]
    assert [list(one.keys()) for one in simple.batch([(PAIR, PAIR)], outputs="OUTPUT0")] == [["OUTPUT0"]]
    assert list(asyncio.run(simple.aio(PAIR, PAIR, outputs="OUTPUT1")).keys()) == ["OUTPUT1"]
    with pytest.raises(InferenceServerException, match="unexpected inference output 'NOPE'"):
        simple(PAIR, PAIR, outputs="NOPE")


@pytest.mark.parametrize("name", ["answer", "arrays", "head", "outputs", "OUT"])
def test_an_output_may_have_any_name_that_the_page_does_not_take(made_server, name):  # noqa: F811
    server = made_server(type("Named", (Counts,), {"output": name}))
    with nerite.connect(f"unix:{server.path}") as made:
        for _ in range(2):
            out = made.model("counts")([1])
            assert getattr(out, name).tolist() == out[name].tolist() == [7]


def test_the_names_that_a_response_takes_are_documented():
    own = {one for one in dir(nerite.Response) if not one.startswith("_")}
    assert own == {"model", "version", "id", "parameters", "keys", "values", "items", "get"}
    assert all(f"``{one}``" in nerite.Response.__doc__ for one in own)
    out = nerite.Response({"keys": np.ones(1), "_head": np.ones(1)})
    assert out["keys"].tolist() == out["_head"].tolist() == [1]


def test_an_unknown_input_is_an_error_also_beside_a_lent_buffer(client):
    identity = client.model("identity_fp32")
    identity.input("INPUT0", [4])[:] = 1
    for infer in (identity, lambda **named: identity.submit(**named).result()):
        with pytest.raises(TypeError, match="model 'identity_fp32' has no input 'nope', it takes INPUT0"):
            infer(nope=[1.0])
    assert identity().OUTPUT0.tolist() == [1] * 4


@pytest.mark.parametrize(
    ("timeout", "kind", "text"),
    [(0, ValueError, "more than 0 seconds"), (-1, ValueError, "got -1"), (float("nan"), ValueError, "got nan"), ("a", TypeError, "got 'a'"), (True, TypeError, "got True")],
)
def test_a_timeout_is_a_positive_number(client, timeout, kind, text):
    identity = client.model("identity_fp32")
    for infer in (identity, lambda given, timeout: identity.batch([given], timeout=timeout), lambda given, timeout: asyncio.run(identity.aio(given, timeout=timeout))):
        with pytest.raises(kind, match=text):
            infer([1.0], timeout=timeout)
    assert identity([1.0], timeout=np.float32(30)).OUTPUT0.tolist() == [1]


def test_names_and_ids_are_texts(client):
    with pytest.raises(TypeError, match="the name of a model is a str, got 5"):
        client.model(5)
    identity = client.model("identity_fp32")
    with pytest.raises(TypeError, match="the id of a request is a str, got 5"):
        identity([1.0], id=5)
    assert identity([1.0], id="5").id == "5"


def test_a_row_without_its_first_dimension_says_what_helps(client):
    simple, row = client.model("simple"), np.ones(16, np.int32)
    cure = r"input 'INPUT0' has shape \[16\], the model takes \[-1, 16\]: give it a first dimension, or take the model by client.model\('simple', batch=False\)"
    for infer in (simple, lambda *rows: simple.batch([rows]), lambda *rows: asyncio.run(simple.aio(*rows))):
        with pytest.raises(InferenceServerException, match=cure) as caught:
            infer(row, row)
        assert caught.value.status() == "3"
    assert client.model("simple", batch=False)(row, row).OUTPUT0.shape == (16,)
    # Another fault of a whole tensor is told without it.
    with pytest.raises(InferenceServerException, match="unexpected shape") as caught:
        simple(np.ones((1, 15), np.int32), PAIR)
    assert "first dimension" not in str(caught.value)


def test_masked_elements_are_not_sent_as_if_they_were_there(client):
    identity = client.model("identity_fp32")
    with pytest.raises(InferenceServerException, match=r"2 masked elements among 3: a tensor has none; fill them first, with .filled\(value\)"):
        identity(np.ma.array([1, 2, 3], mask=[0, 1, 1], dtype=np.float32))
    assert identity(np.ma.array([1, 2], mask=[0, 0], dtype=np.float32)).OUTPUT0.tolist() == [1, 2]
    assert identity(np.ma.array([1, 2], dtype=np.float32)).OUTPUT0.tolist() == [1, 2]


def test_bytes_are_elements_of_uint8_like_other_buffers():
    for given in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        assert _convert.elements(given, "UINT8")[0].tolist() == [97, 98, 99]
    with pytest.raises(InferenceServerException, match="got b'abc'"):
        _convert.elements(b"abc", "FP32")


def test_an_input_that_cannot_be_converted_fails_its_request_of_a_batch_only(client):
    identity = client.model("identity_fp32")
    for _ in range(2):
        found = identity.batch([[1.0], ["a"], {"nope": [1.0]}, [2.0]], return_errors=True)
        assert [found[0].OUTPUT0.tolist(), found[3].OUTPUT0.tolist()] == [[1], [2]]
        assert isinstance(found[1], InferenceServerException) and "got 'a' (str)" in str(found[1])
        assert isinstance(found[2], TypeError) and "has no input 'nope'" in str(found[2])
    with pytest.raises(InferenceServerException, match=r"got 'a' \(str\)"):
        identity.batch([[1.0], ["a"]])
    assert all(isinstance(one, InferenceServerException) for one in identity.batch([["a"], ["b"]], return_errors=True))


def test_a_socket_may_be_a_path_and_a_wrong_address_says_which(launcher):
    path = launcher.get("nerite").session_socket
    with nerite.connect(pathlib.Path(path)) as made:
        assert made.transport == "session"
    with pytest.raises(ValueError, match=f"did you mean unix:{path}"):
        nerite.connect(path)
    with pytest.raises(TypeError, match="an address is a str such as http://host:port, or the path of a session socket; got 8000"):
        nerite.connect(8000)


def _infer_in_a_worker(model, number):
    return model([number]).OUTPUT0.tolist()


def test_a_model_goes_to_other_processes_by_pickle(client):
    identity = client.model("identity_fp32")
    again = pickle.loads(pickle.dumps(identity))
    assert again([1.0]).OUTPUT0.tolist() == [1] and again._client is not client
    again._client.close()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.starmap(_infer_in_a_worker, [(identity, number) for number in range(4)]) == [[number] for number in range(4)]


def test_datatypes_of_two_bytes_go_both_ways(client):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name, dtype in (("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        model = client.model(f"identity_{name}")
        for given in (np.array([1.5, -2], dtype), [1.5, -2]):
            assert model(given).OUTPUT0.dtype == dtype and model(given).OUTPUT0.tolist() == [1.5, -2]
        with pytest.raises(InferenceServerException, match=f"expected {name.upper()}; where values may be lost"):
            model(np.array([1.5], np.float32))
    # Each value of BF16 is one of FP32.
    assert client.model("identity_fp32")(np.array([1.5], ml_dtypes.bfloat16)).OUTPUT0.tolist() == [1.5]
