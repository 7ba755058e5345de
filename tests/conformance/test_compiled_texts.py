"""What does a compiled backend hear that asks for what is not there, and of its instance's host policy?"""

import pytest
from clients import fp32, open_client
from compiled_setup import put, serving

EXPECTED = {
    "version": "Invalid argument: model configuration version 2 not supported, supported versions are: 1",
    "input": "Invalid argument: [request id: {id}] unknown request input name zz",
    "input_name": "Invalid argument: [request id: {id}] out of bounds index 1: request has 1 inputs",
    "output_name": "Invalid argument: [request id: {id}] out of bounds index 1: request has 1 requested outputs",
    "correlation": "Invalid argument: [request id: {id}] correlation ID in request is not a string",
    "buffer": "ok",
    "base": "NULL",
    "policy": '{{"cpu":{{"cpu-cores":"0-0"}}}}',
}


@pytest.fixture(scope="module", params=["here", "apart"])
def texts(request: pytest.FixtureRequest, launcher):
    if launcher.oracle and request.param == "apart":
        pytest.skip("Triton has no isolated backends")
    repository = launcher.scratch / f"texts_{request.param}"
    put(repository, "texts", "texts", backend="careless")
    put(repository, "told")
    flags = ["--host-policy=cpu,cpu-cores=0-0", "--min-supported-compute-capability=7.5"]
    if request.param == "apart":
        flags.append("--backend-config=careless,isolated=true")
    with serving(launcher, f"texts_{request.param}", repository, *flags, sources=("careless", "sample")) as found:
        yield found


@pytest.mark.parametrize("id", ["x", ""])
def test_errors_name_the_request_and_the_policy_has_its_settings(texts, id):
    with open_client("http", texts) as client:
        reply = client.infer("texts", [fp32("IN", [1, 2])], id=id)
    expected = {key: text.format(id=id or "<id_unknown>") for key, text in EXPECTED.items()}
    assert {key: value for key, value in reply.parameters.items() if key in expected} == expected


def test_backends_hear_which_gpus_are_used(texts):
    # The log escapes what backends write.
    assert '"min-compute-capability":"7.500000"' in texts.log_text().replace("\\", "")
