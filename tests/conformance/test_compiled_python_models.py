"""Does NVIDIA's own Python backend, libtriton_python.so out of a wheel, serve the tests of Python models in this server?"""

import pytest
from clients import open_client
from python_catalogue import models
from test_compiled_python_calls import serving
from test_python_models import *  # noqa: F403

# Of two of these Triton 2.51's library makes something else, wherever it runs: its processes die of a tensor of numpy's own DLPack, and its inputs can be written
# to. The third wants the instance group that a configuration without one gets; here the library reads the configuration before that is added.
del test_dlpack_of_numpy, test_inputs_cannot_be_written_to, test_the_configuration_that_a_model_is_given  # noqa: F821


@pytest.fixture(scope="module")
def python_server(launcher):
    names = [one.name for one in models() if one.name != "py_waits"]
    flags = ["--log-verbose=1", "--exit-on-error=false"]
    with serving(launcher, "compiled_models", names, *flags, with_too=("simple", "chain", "identity_fp32")) as found:
        yield found


@pytest.fixture(scope="module", params=["http", "grpc"])
def python_client(request: pytest.FixtureRequest, python_server):
    with open_client(request.param, python_server) as found:
        yield found
