"""Which models do the conformance tests talk to, and what are their signatures?

One table, made real twice: for nerite (built-in `identity` backend and ONNX files, make_models.py) and for the
reference server (Python models, conformance/triton.py). A test sees only the names and the signatures.
"""

from dataclasses import dataclass, field

DATATYPES = {
    # wire name: config enum
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FP16": "TYPE_FP16",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
    "BYTES": "TYPE_STRING",
    "BF16": "TYPE_BF16",
}

LABELS = ["ash", "beech", "cedar", "dogwood"]
SLOW_MS = 800


@dataclass(frozen=True)
class Tensor:
    """One input or output as the config names it."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False
    labels: bool = False


@dataclass(frozen=True)
class Model:
    """One model; `kind` is `identity` (OUTPUTn = INPUTn), `onnx` (a graph of graphs.py), `ensemble` or `python`."""

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch: int = 0
    versions: tuple[int, ...] = (1,)
    delay_ms: int = 0
    extra: str = ""
    source: str = field(default="", repr=False)


def identity(name: str, *tensors: tuple[str, tuple[int, ...]], **more) -> Model:
    """An identity model over INPUT0.. -> OUTPUT0.. of the given (datatype, dims)."""
    optional = more.pop("optional", ())
    labels = more.pop("labels", False)
    inputs = tuple(Tensor(f"INPUT{i}", dt, dims, i in optional) for i, (dt, dims) in enumerate(tensors))
    outputs = tuple(Tensor(f"OUTPUT{i}", dt, dims, labels=labels) for i, (dt, dims) in enumerate(tensors))
    return Model(name, "identity", inputs, outputs, **more)


def pair(datatype: str, dims: tuple[int, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The two-in two-out signature of the classic example."""
    return (
        tuple(Tensor(f"INPUT{i}", datatype, dims) for i in range(2)),
        tuple(Tensor(f"OUTPUT{i}", datatype, dims) for i in range(2)),
    )


# `wait` parameter in milliseconds, `IN` values are sent back one response each: Triton's classic decoupled example.
REPEAT_SOURCE = '''\
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            delays = pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy()
            for value, delay in zip(values, delays):
                if request.is_cancelled():
                    break
                time.sleep(float(delay) / 1000)
                out = pb_utils.Tensor("OUT", np.array([value], dtype=np.int32))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
'''

CHAIN_STEPS = """\
ensemble_scheduling {
  step [
    {
      model_name: "identity_fp32"
      model_version: -1
      input_map { key: "INPUT0" value: "INPUT0" }
      output_map { key: "OUTPUT0" value: "between" }
    },
    {
      model_name: "identity_fp32"
      model_version: -1
      input_map { key: "INPUT0" value: "between" }
      output_map { key: "OUTPUT0" value: "OUTPUT0" }
    }
  ]
}
"""


def models() -> list[Model]:
    """All models of the conformance repository."""
    found = [identity(f"identity_{dt.lower()}", (dt, (-1,))) for dt in DATATYPES]
    found += [identity(f"batched_{dt.lower()}", (dt, (-1,)), max_batch=8) for dt in ("FP32", "INT32", "BYTES")]
    found += [
        identity("matrix_fp32", ("FP32", (-1, -1))),
        identity("fixed_fp32", ("FP32", (2, 3))),
        identity("mixed", ("FP32", (-1,)), ("BYTES", (-1,)), ("INT32", (-1,))),
        identity("optional_pair", ("FP32", (-1,)), ("FP32", (-1,)), optional=(1,)),
        identity("classes", ("FP32", (4,)), max_batch=4, labels=True),
        identity("classes_int32", ("INT32", (4,))),
        identity("versioned", ("FP32", (-1,)), versions=(1, 3), extra="version_policy { all { } }\n"),
        identity("slow_fp32", ("FP32", (-1,)), delay_ms=SLOW_MS),
        identity(
            "queue_of_one",
            ("FP32", (2,)),
            max_batch=1,
            delay_ms=SLOW_MS,
            extra="dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n",
        ),
        identity("sequence_int32", ("INT32", (1,)), max_batch=4, extra="sequence_batching { }\n"),
        Model("simple", "onnx", *pair("INT32", (16,)), max_batch=8),
        Model("chain", "ensemble", (Tensor("INPUT0", "FP32", (-1,)),), (Tensor("OUTPUT0", "FP32", (-1,)),),
              extra=CHAIN_STEPS),
        Model(
            "repeat_int32",
            "python",
            (Tensor("IN", "INT32", (-1,)), Tensor("DELAY", "UINT32", (-1,))),
            (Tensor("OUT", "INT32", (1,)),),
            extra="model_transaction_policy { decoupled: true }\n",
            source=REPEAT_SOURCE,
        ),
    ]
    return found


def tensor_block(tensor: Tensor) -> str:
    """One `{ … }` of an input or output list."""
    lines = [
        f'    name: "{tensor.name}"',
        f"    data_type: {DATATYPES[tensor.datatype]}",
        f"    dims: [ {', '.join(map(str, tensor.dims))} ]",
    ]
    if tensor.optional:
        lines.append("    optional: true")
    if tensor.labels:
        lines.append('    label_filename: "labels.txt"')
    return "  {\n" + "\n".join(lines) + "\n  }"


def config_text(model: Model, runtime: str, parameters: dict[str, str] | None = None) -> str:
    """The config.pbtxt of `model`; `runtime` is its `backend:` or `platform:` line."""
    parts = [f'name: "{model.name}"\n{runtime}\nmax_batch_size: {model.max_batch}\n']
    for key, tensors in (("input", model.inputs), ("output", model.outputs)):
        parts.append(f"{key} [\n" + ",\n".join(map(tensor_block, tensors)) + "\n]\n")
    parts.append(model.extra)
    for key, value in (parameters or {}).items():
        parts.append(f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n')
    return "".join(parts)
