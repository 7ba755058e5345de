"""Does a model run its warmup samples before it serves, and does a sample that fails say so?"""

import pathlib

import numpy as np
import pytest
from clients import fp32, open_client, refuses

# SEEN: requests that the instance had before, and the sum of their first numbers; it refuses to compute a 13.
MODEL = """\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = [0.0, 0.0]

    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().reshape(-1)
            if 13 in value:
                responses.append(pb_utils.InferenceResponse([], pb_utils.TritonError("thirteen brings no luck")))
                continue
            shape = [1, 2] if len(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().shape) > 1 else [2]
            made = pb_utils.Tensor("SEEN", numpy.array(self.seen, numpy.float32).reshape(shape))
            self.seen = [self.seen[0] + 1, self.seen[1] + float(value[0])]
            responses.append(pb_utils.InferenceResponse([made]))
        return responses
"""


def sample(content: str, *, batch: int = 1, count: int = 0, dims: str = "[ 2 ]", name: str = "w", datatype: str = "FP32") -> str:
    counted = f"count: {count}" if count else ""
    return (
        f'model_warmup {{ name: "{name}" batch_size: {batch} {counted} '
        f'inputs {{ key: "IN" value {{ data_type: TYPE_{datatype} dims: {dims} {content} }} }} }}\n'
    )


def put(repository: pathlib.Path, name: str, *samples: str, batch: int = 0, dims: str = "[ 2 ]") -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "warmup").mkdir()
    (repository / name / "warmup" / "five").write_bytes(np.array([5, 5], np.float32).tobytes())
    (repository / name / "warmup" / "thirteen").write_bytes(np.array([13, 13], np.float32).tobytes())
    (repository / name / "1" / "model.py").write_text(MODEL)
    (repository / name / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: {batch}\ninput {{ name: "IN" data_type: TYPE_FP32 dims: {dims} }}\n'
        'output { name: "SEEN" data_type: TYPE_FP32 dims: [ 2 ] }\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n' + "".join(samples)
    )


REFUSED = {
    "fails": ([sample('input_data_file: "thirteen"', name="unlucky")], "failed to run warmup sample 'unlucky': thirteen brings no luck; "),
    "too_short": (
        [sample('input_data_file: "five"', dims="[ 3 ]")],
        "warmup setting expects 12 bytes, but the data provided from fiveonly has 8 bytes",
    ),
    "open_dims": (
        [sample("zero_data: true", dims="[ -1 ]")],
        "warmup setting expects all variable-size dimensions are specified for input 'IN'",
    ),
    "no_data": ([sample("")], "warmup setting expects input 'IN' to have input_data_type set"),
}


@pytest.fixture(scope="module")
def warmed(launcher):
    repository = launcher.scratch / "warmups"
    put(repository, "cold")
    put(repository, "skipped", sample("zero_data: true", batch=0))
    put(repository, "zeros", sample("zero_data: true", count=3))
    put(repository, "random", sample("random_data: true"))
    put(repository, "file", sample('input_data_file: "five"', count=2), sample("zero_data: true"))
    put(repository, "batched", sample('input_data_file: "five"', batch=3), batch=4)
    for name, (samples, _) in REFUSED.items():
        put(repository, name, *samples, dims="[ -1 ]" if name in ("too_short", "open_dims") else "[ 2 ]")
    with launcher.running("warmups", "--model-control-mode=explicit", repository=repository) as found:
        yield found


@pytest.mark.parametrize(
    ("model", "batched", "seen"),
    [
        ("cold", False, [0, 0]),
        ("skipped", False, [0, 0]),
        ("zeros", False, [3, 0]),
        ("file", False, [3, 10]),
        ("batched", True, [3, 15]),
    ],
)
def test_samples_run_before_the_first_request(launcher, warmed, model, batched, seen):
    with open_client("http", warmed) as client:
        client.load(model)
        # 2.51 counts those of some samples.
        assert launcher.oracle or client.statistics(model)[0]["inference_count"] == 0
        reply = client.infer(model, [fp32("IN", [[1, 1]] if batched else [1, 1])])
        assert np.frombuffer(reply.outputs["SEEN"].raw, np.float32).tolist() == seen


def test_random_numbers_are_numbers(launcher, warmed):
    with open_client("http", warmed) as client:
        client.load("random")
        reply = client.infer("random", [fp32("IN", [1, 1])])
        count, first = np.frombuffer(reply.outputs["SEEN"].raw, np.float32).tolist()
        assert count == 1 and (launcher.oracle or 0 <= first < 1)


@pytest.mark.parametrize("model", REFUSED)
def test_a_sample_that_cannot_run_fails_the_load(warmed, model):
    with open_client("http", warmed) as client:
        with refuses("INVALID_ARG", ""):
            client.load(model)
        reason = next(one["reason"] for one in client.index() if one["name"] == model)
        assert REFUSED[model][1] in reason
