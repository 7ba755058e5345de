"""Is everything that tritonclient has here as well?"""

import ast
import importlib
import inspect
import pathlib
import subprocess
import sys
import typing

import pytest
import tritonclient.grpc
import tritonclient.http

import nerite.grpc
import nerite.http
import nerite.shm

MODULES = ["http", "grpc", "http.aio", "grpc.aio", "http.auth", "grpc.auth"]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_offered(name):
    theirs, ours = (importlib.import_module(f"{package}.{name}") for package in ("tritonclient", "nerite"))
    public = {one for one in dir(theirs) if not one.startswith("_")}
    assert public <= set(dir(ours))
    assert set(getattr(theirs, "__all__", ())) <= set(ours.__all__)


@pytest.mark.parametrize("name", ["service_pb2", "model_config_pb2", "service_pb2_grpc"])
def test_message_modules_can_be_imported_and_are_the_same(name):
    assert importlib.import_module(f"nerite.grpc.{name}") is importlib.import_module(f"tritonclient.grpc.{name}")


@pytest.mark.parametrize("name", ["InferenceServerClient", "InferInput", "InferResult"])
def test_classes_are_subclasses(name):
    for ours, theirs in ((nerite.http, tritonclient.http), (nerite.grpc, tritonclient.grpc)):
        assert issubclass(getattr(ours, name), getattr(theirs, name))
        assert issubclass(ours.InferOutput, theirs.InferRequestedOutput)


def described(call):
    return [(one.name, one.kind, one.default) for one in inspect.signature(call).parameters.values()]


@pytest.mark.parametrize("name", ["http", "grpc", "http.aio", "grpc.aio"])
@pytest.mark.parametrize("kind", ["InferenceServerClient", "InferInput", "InferResult", "InferRequestedOutput"])
def test_every_method_has_the_same_parameters(name, kind):
    theirs, ours = (getattr(importlib.import_module(f"{package}.{name}"), kind, None) for package in ("tritonclient", "nerite"))
    assert (theirs is None) == (ours is None)
    public = {one for one in dir(theirs) if not one.startswith("_")} if theirs else set()
    for method in public:
        assert described(getattr(ours, method)) == described(getattr(theirs, method)), method
    if theirs:
        made, more = described(ours), {"buffers", "session_socket", "server_uid"}
        assert [one for one in made if one[0] not in more] == described(theirs)
        assert all(kind == inspect.Parameter.KEYWORD_ONLY for name, kind, _ in made if name in more)


def test_the_packages_own_functions_have_type_hints():
    # A `with` block around an untyped __enter__ makes a client of type Any.
    aio = importlib.import_module("nerite.grpc.aio")
    for client, enter in ((nerite.http, "__enter__"), (nerite.grpc, "__enter__"), (aio, "__aenter__")):
        hints = typing.get_type_hints(getattr(client.InferenceServerClient, enter))
        assert hints["self"] is hints["return"]
    for module in (nerite.http, nerite.grpc):
        hints = typing.get_type_hints(module.InferInput.set_shared_memory_request)
        assert hints["self"] is hints["return"]
        for kind in (module.InferOutput, module.InferResult, module.TensorBuffer, nerite.shm.Region):
            own = {name: one for name, one in vars(kind).items() if inspect.isfunction(one) and not name.startswith("_")}
            assert all("return" in typing.get_type_hints(one) for one in own.values()), kind


@pytest.mark.parametrize("path", sorted(pathlib.Path(nerite.__file__).parent.rglob("*.py")), ids=str)
def test_every_file_is_python_3_9(path):
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_other_attributes_are_found_too_and_wrong_ones_are_not():
    assert nerite.http._infer_input is tritonclient.http._infer_input
    with pytest.raises(AttributeError, match="module 'nerite.http' has no attribute 'nonsense'"):
        nerite.http.nonsense  # noqa: B018


@pytest.mark.parametrize("module", [nerite.http, nerite.grpc])
def test_a_client_needs_no_server_to_be_made_and_closed(module):
    with module.InferenceServerClient("localhost:1") as client:
        handle = client.register_input_tensor_with_shared_memory([2], "FP32")
        assert not handle.is_shared
    with pytest.raises(Exception, match="buffers must be"):
        module.InferenceServerClient("localhost:1", buffers="magic")


@pytest.mark.parametrize(("kept", "absent"), [("http", "grpc"), ("grpc", "gevent"), ("http", "google.protobuf")])
def test_one_protocol_does_not_need_the_others_packages(kept, absent):
    code = f"import sys; sys.modules['{absent}'] = None; import nerite.{kept}, nerite.shm, nerite.testing.shm_util"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
