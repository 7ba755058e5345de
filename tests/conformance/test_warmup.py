"""Does a model run its warmup samples before it serves, and does a sample that fails say so?"""

import pathlib
import re

import numpy as np
import pytest
from clients import differs, fp32, int32, open_client, refuses

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


# SEEN: the controls of all requests so far, each as START, READY and the id.
TOLD = """\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        responses = []
        for request in requests:
            start, ready, id = (pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0] for name in ("START", "READY", "CORRID"))
            self.seen.append(f"{start} {ready} {id.decode()}")
            made = pb_utils.Tensor("SEEN", numpy.array([[", ".join(self.seen).encode()]], object))
            responses.append(pb_utils.InferenceResponse([made]))
        return responses
"""


def put_sequences(repository: pathlib.Path, name: str, *named: str) -> None:
    """A model of sequences with a sample as those of Triton's test L0_warmup, which names these inputs."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(TOLD)
    flags = "".join(
        f'control_input {{ name: "{kind}" control {{ kind: CONTROL_SEQUENCE_{kind} int32_false_true: [ 0, 1 ] }} }}\n' for kind in ("START", "READY")
    )
    datatype = {"CORRID": "STRING"}
    inputs = "".join(f'inputs {{ key: "{one}" value {{ data_type: TYPE_{datatype.get(one, "INT32")} dims: 1 zero_data: true }} }}\n' for one in named)
    (repository / name / "config.pbtxt").write_text(f"""\
backend: "python"
max_batch_size: 2
input {{ name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
sequence_batching {{
  {flags}
  control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING }} }}
}}
model_warmup [ {{ name: "sequence sample" batch_size: 1 count: 2 {inputs} }} ]
""")


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
    put_sequences(repository, "controls_of_the_server", "INPUT")
    put_sequences(repository, "controls_of_the_sample", "INPUT", "START", "READY")
    put_sequences(repository, "id_of_the_sample", "INPUT", "CORRID")
    for name, (samples, _) in REFUSED.items():
        put(repository, name, *samples, dims="[ -1 ]" if name in ("too_short", "open_dims") else "[ 2 ]")
    with launcher.running("warmups", "--model-control-mode=explicit", "--log-verbose=1", repository=repository) as found:
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


def test_the_verbose_log_names_each_instance_and_its_samples(warmed):
    with open_client("http", warmed) as client:
        client.load("zeros")
    for iteration in (1, 2, 3):
        assert re.search(rf"model 'zeros' instance zeros\S* is running warmup sample 'w' for iteration {iteration}\b", warmed.log_text())


@differs("the Python backend of 2.51 gets no control that the sample does not name")
@pytest.mark.parametrize(("model", "seen"), [("controls_of_the_server", "1 1 1"), ("controls_of_the_sample", "0 0 1"), ("id_of_the_sample", "1 1 ")])
def test_a_sample_may_name_the_controls_of_a_sequence(warmed, model, seen):
    with open_client("http", warmed) as client:
        client.load(model)
        reply = client.infer(model, [int32("INPUT", [[1]])], parameters={"sequence_id": "a", "sequence_start": True})
    assert reply.outputs["SEEN"].raw[4:].decode() == f"{seen}, {seen}, 1 1 a"


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
