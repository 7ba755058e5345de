"""Are answers of models of NVIDIA's own Python backend, libtriton_python.so out of a wheel, sent and counted as those of the built-in one?"""

import pytest
from clients import open_client
from test_compiled_python_calls import serving
from test_python_answers import (  # noqa: F401
    test_a_model_sees_that_its_request_was_cancelled,
    test_a_sender_in_the_default_mode,
    test_a_second_response_is_refused,
    test_an_error_by_a_sender,
    test_an_error_without_a_code_is_internal,
    test_errors_of_every_code,
    test_outputs_as_the_model_makes_them,
    test_strided_and_text_outputs_arrive_whole,
    test_the_time_of_execute_is_counted,
    test_what_counts_as_a_failure,
    test_what_execute_must_not_do,
)

MODELS = ("py_actions", "py_senders", "py_sleeping")


@pytest.fixture(scope="module")
def python_server(launcher):
    with serving(launcher, "compiled_answers", MODELS, "--log-verbose=1") as found:
        yield found


@pytest.fixture(scope="module", params=["http", "grpc"])
def python_client(request: pytest.FixtureRequest, python_server):
    with open_client(request.param, python_server) as found:
        yield found
