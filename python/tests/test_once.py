"""How often does a model run for one call?"""

import asyncio
import os
import pickle
import sys

import numpy as np
import peers
import pytest
from tritonclient.utils import InferenceServerException

import nerite

# The number of elements of its output depends on the first value, and there is no output if that is negative. It counts its runs.
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.runs = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.runs += 1
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            outputs = [pb_utils.Tensor("OUT", np.repeat(given, int(given[0])))] if given[0] >= 0 else []
            responses.append(pb_utils.InferenceResponse([*outputs, pb_utils.Tensor("RUNS", np.array([self.runs]))]))
        return responses
"""
CONFIG = """
backend: "python"
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "RUNS" data_type: TYPE_INT64 dims: [ 1 ] }]
"""


def started(tmp_path_factory, **flags):
    folder = tmp_path_factory.mktemp("models")
    (folder / "repeats" / "1").mkdir(parents=True)
    (folder / "repeats" / "config.pbtxt").write_text(CONFIG)
    (folder / "repeats" / "1" / "model.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NERITE_BIN", str(peers.servers.nerite_binary()))
        # The model runs in this Python, which has numpy.
        patch.setenv("PATH", os.path.join(sys.prefix, "bin"), prepend=os.pathsep)
        with nerite.serve(str(folder), **flags) as made:
            yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from started(tmp_path_factory)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A server whose sessions may borrow 8 MiB."""
    yield from started(tmp_path_factory, session_max_bytes=8 << 20)


def given(first, count=6):
    return np.full(count, first, np.float32)


def test_a_model_that_may_run_once_does_so_when_its_output_grows(server):
    with nerite.connect(f"unix:{server.session_socket}") as client:
        usual, once = client.model("repeats"), client.model("repeats", once=True)
        # The sizes of outputs follow from the inputs' shapes, as it seems.
        for _ in range(3):
            before = int(usual(given(1)).RUNS[0])
        assert int(usual(given(4)).RUNS[0]) == before + 2, "the second run is the price of prepared calls"
        runs = before + 2
        for model in (once, pickle.loads(pickle.dumps(once))):
            for first in (1, 1, 1, 4, 2, 4):
                for response in (model(given(first)), model.submit(given(first)).result(), asyncio.run(model.aio(given(first))), *model.batch([given(first)] * 3)):
                    runs += 1
                    assert (int(response.RUNS[0]), response.OUT.tolist()) == (runs, [first] * 6 * first)


def test_a_model_that_leaves_an_output_out_answers_without_it(server):
    with nerite.connect(f"unix:{server.session_socket}") as client:
        usual, once = client.model("repeats"), client.model("repeats", once=True)
        for _ in range(3):
            before = int(usual(given(1, 7)).RUNS[0])
        # The memory that the client gave a prepared call for the output is no reason to fail.
        for model, runs in ((usual, 2), (usual, 1), (once, 1)):
            response = model(given(-1, 7))
            assert (list(response.keys()), int(response.RUNS[0])) == (["RUNS"], before + runs)
            before += runs


def test_a_model_that_may_run_once_does_so_where_memory_lacks(small):
    with nerite.connect(f"unix:{small.session_socket}") as client:
        usual, once, failed = client.model("repeats"), client.model("repeats", once=True), 0
        for count in range(100_000, 340_000, 20_000):
            # Prepared calls keep memory, until the server has none for the outputs of another one.
            for _ in range(3):
                before = int(usual(given(1, count)).RUNS[0])
            try:
                assert int(once(given(1, count + 10_000)).RUNS[0]) == before + 1, "the call ran twice"
            except InferenceServerException as error:
                assert "does not fit" in str(error)
                failed += 1
        assert 0 < failed < 12, "what lacked was returned for later calls"


def test_a_model_that_may_run_once_and_a_client_that_repeats_exclude_each_other(server):
    with nerite.connect(f"unix:{server.session_socket}", repeat_lost=True) as client:
        with pytest.raises(ValueError, match="model 'repeats' with once=True needs a client that sends no request again; connect without repeat_lost"):
            client.model("repeats", once=True)
