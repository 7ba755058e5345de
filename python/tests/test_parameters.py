"""Do the parameters of a response come over every protocol as the model set them?"""

import asyncio
import os
import sys

import peers
import pytest
from http_server import HttpServer

import nerite
from nerite import _messages, _protobuf

MODEL = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))], parameters=PARAMETERS) for _ in requests]
'''
CONFIG = """
backend: "python"
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }]
"""
PARAMETERS = {"text": "größer", "yes": True, "no": False, "whole": -7, "none": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "says" / "1").mkdir(parents=True)
    (folder / "says" / "config.pbtxt").write_text(CONFIG)
    (folder / "says" / "1" / "model.py").write_text(MODEL.replace("PARAMETERS", repr(PARAMETERS)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NERITE_BIN", str(peers.servers.nerite_binary()))
        # The model runs in this Python, which has numpy.
        patch.setenv("PATH", os.path.join(sys.prefix, "bin"), prepend=os.pathsep)
        with nerite.serve(str(folder)) as made:
            yield made


@pytest.mark.parametrize("way", ["session", "http", "grpc"])
def test_parameters_come_as_the_model_set_them(server, way):
    options = {} if way == "session" else {"buffers": "inline"}
    address = {"session": f"unix:{server.session_socket}", "http": f"http://{server.http}", "grpc": f"grpc://{server.grpc}"}[way]
    with nerite.connect(address, **options) as made:
        if way != "session":
            made._session_path = None
        says = made.model("says")
        for out in (says([1.0]), says([1.0]), asyncio.run(says.aio([1.0])), *says.batch([[1.0]] * 2)):
            assert out.parameters == PARAMETERS
            assert [type(one) for one in out.parameters.values()] == [type(PARAMETERS[name]) for name in out.parameters]
        if way != "http":
            assert [one.parameters for one in says.stream([1.0])] == [PARAMETERS]


def test_parameters_of_any_server_for_http_come_as_they_are():
    server = HttpServer()
    server.parameters = {"rate": 1.5, "large": 2**63 + 1}
    with nerite.connect(server.url, session_socket="/nonexistent/session.sock", buffers="inline") as made:
        assert made.model("counts")([1]).parameters == server.parameters
        server.parameters = None
        assert made.model("counts")([1]).parameters == {}
    server.close()


@pytest.mark.parametrize(("field", "value"), [((5, 2**63 + 1), 2**63 + 1), ((2, 2**64 - 1), -1), ((1, 1), True), ((3, b"a"), "a")])
def test_each_kind_of_parameter_is_read(field, value):
    entry = _protobuf.encode([(1, "key"), (2, _protobuf.encode([field]))])
    assert _messages._read_entry(entry) == ("key", value)


@pytest.mark.parametrize("value", [0.0, -1.5, 1e300, float("inf")])
def test_a_double_is_read(value):
    assert _messages._read_entry(_messages._entry("key", value)) == ("key", value)
