"""Does ``nerite.connect`` work for a client that may infer, and may borrow no memory?"""

import numpy as np
import peers
import pytest
from tritonclient.utils import InferenceServerException

import nerite

EXAMPLES = peers.ROOT / "examples" / "models"
TOKENS = """
[[token]]
name = "ci"
secret = "secret of ci"
scopes = ["infer"]

[[token]]
name = "all"
secret = "secret of all"
scopes = ["infer", "regions"]

[anonymous]
scopes = []
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    file.touch(0o600)
    file.write_text(TOKENS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NERITE_BIN", str(peers.servers.nerite_binary()))
        with nerite.serve(EXAMPLES, access_tokens_file=file) as found:
            yield found


def transport_of(url: str, **options) -> str:
    with nerite.connect(url, **options) as client:
        out = client.model("identity_fp32")(np.arange(16, dtype=np.float32))
        assert out[next(iter(dict(out.items())))].tolist() == list(range(16))
        return client.transport


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tensors_go_in_the_messages_without_the_scope_regions(server, protocol):
    url = f"{protocol}://{server.http if protocol == 'http' else server.grpc}"
    options = {"session_socket": server.session_socket}
    assert transport_of(url, token="secret of ci", **options) == "inline"
    assert transport_of(url, token="secret of all", **options) == "lease"


def test_without_an_address_the_usual_one_over_http_is_tried(server, monkeypatch):
    monkeypatch.setattr("nerite._client.HTTP_DEFAULT", server.http_url)
    assert transport_of(None, token="secret of ci", session_socket=server.session_socket) == "inline"


def test_a_session_alone_says_what_it_needs(server):
    with nerite.connect(f"unix:{server.session_socket}", token="secret of ci") as client:
        with pytest.raises(InferenceServerException, match="the server lends no memory: token 'ci' has no scope"):
            client.model("identity_fp32")(np.arange(16, dtype=np.float32))
