"""Which servers have Python models?"""

import pytest
from clients import open_client
from python_catalogue import models
from python_setup import serving

# These are started by the tests that need them.
APART = {"py_waits"}


@pytest.fixture(scope="session")
def python_server(launcher):
    """All of them that load."""
    if any(launcher.urls):
        pytest.skip("needs a server of its own")
    names = [one.name for one in models() if one.name not in APART]
    with serving(launcher, "python", *names, flags=["--log-verbose=1"], with_too=("simple", "chain", "identity_fp32")) as found:
        yield found


@pytest.fixture(scope="session", params=["http", "grpc"])
def python_client(request: pytest.FixtureRequest, python_server):
    with open_client(request.param, python_server) as found:
        yield found
