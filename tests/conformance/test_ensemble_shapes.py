"""Which shapes do the tensors of an ensemble have, where some of its models batch and others do not, or reshape their tensors?"""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from clients import Refused, fp32, open_client
from test_ensembles import MODEL, put_ensemble, put_part

SAME = MODEL.replace("value + 1", "value")
# Answers the shapes that it sends to the model `square` and gets from it.
ASKS = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "IN")) for request in requests]

    def answer(self, value):
        request = pb_utils.InferenceRequest(model_name="square", requested_output_names=["OUT"], inputs=[value])
        answer = request.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse([], answer.error())
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer.output_tensors()[0].as_numpy())])
"""


@dataclass(frozen=True)
class Kind:
    """A model or an ensemble: whether it batches, and the dimensions of its tensors."""

    name: str
    batches: bool
    dims: tuple[int, ...]

    @property
    def full(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batches else self.dims

    @property
    def config(self) -> dict[str, str]:
        return {"dims": ", ".join(map(str, self.dims)), "extra": "max_batch_size: 4" if self.batches else ""}

    def takes(self, shape: tuple[int, ...]) -> bool:
        return fits(shape, self.full) and (not self.batches or shape[0] <= 4)


KINDS = [Kind("one", False, (3,)), Kind("rows", True, (3,)), Kind("table", False, (-1, 3)), Kind("tables", True, (-1, 3))]
SHAPES = [(3,), (1, 3), (2, 3), (5, 3), (1, 1, 3), (1, 2, 3), (2, 2, 3)]
ENSEMBLES = [(kind, steps) for length in (1, 2) for kind in KINDS for steps in itertools.product(KINDS, repeat=length)]


def fits(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other))


def converted(shape: tuple[int, ...], writer: Kind, reader: Kind) -> tuple[int, ...]:
    """Triton's rule, as `EnsembleContext::ReshapeTensorDims` has it."""
    if reader.batches and not writer.batches and fits(shape, reader.dims):
        return (1, *shape)
    if writer.batches and not reader.batches and shape[0] == 1 and not fits(shape, reader.dims):
        return shape[1:]
    return shape


def answered(ensemble: Kind, steps: tuple[Kind, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of the answer of models that return what they get. None: the request is refused."""
    if not ensemble.takes(shape):
        return None
    writer = ensemble
    for step in steps:
        shape, writer = converted(shape, writer, step), step
        if not step.takes(shape):
            return None
    return converted(shape, writer, ensemble)


def name_of(ensemble: Kind, steps: tuple[Kind, ...]) -> str:
    return "_".join([ensemble.name, "of", *(step.name for step in steps)])


def agrees(ensemble: Kind, steps: tuple[Kind, ...]) -> bool:
    """Whether it loads. Each tensor is compared with the first declaration of it."""

    def alike(one: Kind, other: Kind) -> bool:
        return fits(one.dims, other.dims) or fits(one.full, other.full)

    return alike(ensemble, steps[0]) and alike(ensemble, steps[-1]) and all(alike(*pair) for pair in itertools.pairwise(steps))


@pytest.fixture(scope="module")
def server(launcher):
    found = launcher.scratch / "ensemble_shapes"

    def put(name: str, **config) -> None:
        put_part(found, name, SAME, **config)
        if not launcher.oracle:
            # The built-in backend needs no process.
            path = found / name / "config.pbtxt"
            path.write_text(path.read_text().replace('backend: "python"', 'backend: "identity"'))

    for kind in KINDS:
        put(kind.name, **kind.config)
    for ensemble, steps in ENSEMBLES:
        if agrees(ensemble, steps):
            first = [f"{steps[0].name} IN=IN OUT={'OUT' if len(steps) == 1 else 'x'}"]
            rest = [f"{step.name} IN=x OUT=OUT" for step in steps[1:]]
            put_ensemble(found, name_of(ensemble, steps), *first, *rest, **ensemble.config)
    put("scalar", dims="1", reshape="reshape { shape: [ ] }", extra="max_batch_size: 4")
    put_ensemble(found, "of_scalars", "scalar IN=IN OUT=x", "scalar IN=x OUT=OUT", dims="1", extra="max_batch_size: 4")
    put("square", dims="4", reshape="reshape { shape: [ 2, 2 ] }", extra="max_batch_size: 4")
    put_part(found, "asks", ASKS, dims="4", extra="max_batch_size: 4")
    with launcher.running("ensemble_shapes", repository=found) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    with open_client(request.param, server) as found:
        yield found


def shape_from(client, model: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    values = np.arange(np.prod(shape), dtype=np.float32)
    try:
        output = client.infer(model, [fp32("IN", values.tolist(), list(shape))]).outputs["OUT"]
    except Refused as refused:
        assert "shape" in refused.text or "batch" in refused.text, refused.text
        return None
    assert np.frombuffer(output.raw, np.float32).tolist() == values.tolist(), model
    return tuple(output.shape)


def test_a_batch_dimension_of_one_comes_and_goes_between_models(client):
    different = {}
    for ensemble, steps in filter(lambda one: agrees(*one), ENSEMBLES):
        for shape in SHAPES:
            expected, found = answered(ensemble, steps, shape), shape_from(client, name_of(ensemble, steps), shape)
            if found != expected:
                different[name_of(ensemble, steps), shape] = (found, expected)
    assert different == {}


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        ("one_of_rows", (3,), (3,)),
        ("rows_of_one", (1, 3), (1, 3)),
        ("rows_of_one", (2, 3), None),
        ("rows_of_table", (2, 3), (2, 3)),
        ("table_of_rows", (2, 3), (2, 3)),
        ("one_of_rows_one", (3,), (3,)),
        ("rows_of_one_rows", (1, 3), (1, 3)),
    ],
)
def test_smallest_ensembles_of_models_that_batch_and_do_not(client, model, shape, expected):
    assert shape_from(client, model, shape) == expected


@pytest.mark.parametrize(("model", "shape"), [("scalar", (2, 1)), ("of_scalars", (2, 1)), ("square", (2, 4)), ("asks", (2, 4)), ("asks", (1, 4))])
def test_an_output_has_the_shape_that_its_model_declares(client, model, shape):
    """For a client, for the next step, and for a model that asks another one."""
    assert shape_from(client, model, shape) == shape
