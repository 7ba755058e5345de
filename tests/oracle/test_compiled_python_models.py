"""Does NVIDIA's own Python backend, libtriton_python.so out of a wheel, serve the tests of Python models in this server?"""

import pytest
from clients import open_client
from python_catalogue import models
from test_compiled_python_calls import serving
from test_python_models import *  # noqa: F403

# These two fail with Triton 2.51's library, in Triton itself as well: its process dies of a tensor of numpy's own DLPack, and inputs can be written to.
del test_dlpack_of_numpy, test_inputs_cannot_be_written_to  # noqa: F821


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
