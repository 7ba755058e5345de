"""Does NVIDIA's own Python backend, libtriton_python.so out of a wheel, serve the tests of decoupled models in this server?"""

import pytest
from test_decoupled import *  # noqa: F403
from test_compiled_python_calls import serving  # isort: skip - test_decoupled has another function of this name

MODELS = ("py_decoupled", "py_decoupled_coroutine")

# The error has other words there.
del test_a_request_that_the_model_drops_ends_with_an_error  # noqa: F821


@pytest.fixture(scope="module")
def python_server(launcher):
    with serving(launcher, "compiled_decoupled", MODELS, "--log-verbose=1") as found:
        yield found
