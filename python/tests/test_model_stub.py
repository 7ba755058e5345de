"""Does the child answer the server's commands as docs/python.md says?"""

import numpy as np
import pytest
from model_server import ModelServer, given, placed

IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())])
            for request in requests
        ]
"""


@pytest.fixture
def start(tmp_path):
    """Starts children; ends them."""
    made = []

    def start(source, **fields):
        made.append(ModelServer(tmp_path, source, **fields))
        return made[-1]

    yield start
    for one in made:
        one.__exit__()


def test_an_identity_model_writes_its_input_to_the_place_of_its_output(start):
    server = start(IDENTITY)
    ready = server.initialize()["ready"]
    assert ready["numpy"] == np.__version__ and ready["guard"] is False
    memory = server.memory(4096)
    numbers = np.arange(16, dtype=np.float32).reshape(4, 4)
    answer = server.execute(server.request([given(memory, "IN", numbers)], [["OUT", 1, 1024, 64, False]]))
    assert answer["responses"] == [{"outputs": [["OUT", "FP32", [4, 4], 1, 1024, 64]], "parameters": {}}]
    assert (placed(server, answer["responses"][0]["outputs"][0]) == numbers).all()
    assert server.ask({"do": "finalize"}) == {"done": True}
    assert server.process.wait(5) == 0
