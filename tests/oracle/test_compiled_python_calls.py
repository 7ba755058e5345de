"""May models of NVIDIA's own Python backend, libtriton_python.so out of a wheel, ask other models of this server?

The tests are those of the built-in Python backend (test_python_calls.py), without those of which Triton 2.51 itself makes something else: a load
that is refused often ends the server there, by an exception that leaves NVIDIA's library (boost::interprocess::lock_exception), and so it does here.
With `--oracle` Triton runs them there, so they are not asked a second time here.
"""

import contextlib

import python_catalogue
import pytest
import triton
from python_setup import PATIENT
from compiled_setup import environment
from test_python_calls import (  # noqa: F401
    run_code,
    test_a_model_brings_another_along,
    test_a_model_loads_and_unloads_another,
    test_a_model_may_ask_another_instance_of_itself,
    test_coroutines_that_ask,
    test_large_tensors,
    test_many_requests_side_by_side,
    test_what_a_model_gets_from_another_model,
    test_what_is_kept_of_a_response_stays_as_it_was,
    test_what_nested_requests_count,
    test_what_the_other_model_sees_of_the_request,
)

MODELS = ("py_identity", "py_strings", "py_actions", "py_decoupled", "py_facts", "py_asking", "py_asking_coroutine")


@contextlib.contextmanager
def serving(launcher, name: str, models, *flags: str, with_too=()):
    """A server whose Python models run on NVIDIA's library. `models` are names of the catalogue, or models."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("for a server of this project's own")
    if not triton.is_installed():
        pytest.skip("Triton is not installed: cargo xtask oracle")
    backends = triton.backend_directory(launcher.scratch / f"{name}_backends")
    repository = launcher.copy_of(name, *with_too)
    for one in models:
        python_catalogue.put(repository, python_catalogue.named(one) if isinstance(one, str) else one)
    found = triton.environment()
    with environment(LD_LIBRARY_PATH=found["LD_LIBRARY_PATH"], PATH=found["PATH"]):
        with launcher.running(name, PATIENT, f"--backend-directory={backends}", *flags, repository=repository) as server:
            assert "libtriton_python.so, in the place of the built-in one" in server.log_text()
            yield server


@pytest.fixture(scope="module")
def python_server(launcher):
    with serving(launcher, "compiled_asking", MODELS, with_too=("simple", "chain", "identity_fp32")) as found:
        yield found


@pytest.fixture(scope="module")
def controlled(launcher):
    flags = ["--model-control-mode=explicit", "--load-model=py_asking"]
    with serving(launcher, "compiled_control", ("py_asking", "py_identity", "py_actions"), *flags) as found:
        yield found
