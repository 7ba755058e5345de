"""May models of NVIDIA's own Python backend, libtriton_python.so out of a wheel, make metrics of their own in this server?"""

import pytest
import python_catalogue
from clients import open_client
from python_catalogue import tensors
from test_compiled_python_calls import serving
from test_python_metrics import test_counters_and_gauges_are_shown, test_histograms_are_shown, test_numbers_that_json_does_not_know  # noqa: F401


@pytest.fixture(scope="module")
def server(launcher):
    model = python_catalogue.python("py_measuring", "measuring", tensors(CODE="BYTES"), tensors(SAID="BYTES"))
    with serving(launcher, "compiled_metrics", [model]) as found:
        yield found


@pytest.fixture
def client(server):
    with open_client("http", server) as found:
        yield found
