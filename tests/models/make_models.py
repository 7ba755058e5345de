#!/usr/bin/env python3
"""How are the model repositories of the tests made?

    .venv/bin/python tests/models/make_models.py [--out tests/models/generated]

It writes, anew each time,

* conformance/  the models of catalogue.py (identity backend and ONNX)
* onnx/         ONNX models of every datatype and shape of trouble, some with config.pbtxt, some without; nets that
                PyTorch exported (export_torch.py)
* broken/       models that must fail to load, each beside its reason in reasons.json
* light/        the nets without weights that the `onnx` package ships for backend tests, without config
"""

import argparse
import json
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import catalogue  # noqa: E402
import graphs  # noqa: E402
import onnx  # noqa: E402

EXPORTED = HERE / "exported"
EXAMPLES = HERE.parent.parent / "examples" / "models"
ONNX_PLATFORM = 'platform: "onnxruntime_onnx"'


def put(repository: pathlib.Path, name: str, model: onnx.ModelProto, config: str | None = None) -> None:
    """Writes one model; without `config` the server has to complete it."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    onnx.save(model, version / "model.onnx")
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


def make_conformance(repository: pathlib.Path) -> None:
    """The catalogue as nerite serves it."""
    runtimes = {
        "identity": 'backend: "identity"',
        "onnx": ONNX_PLATFORM,
        "ensemble": 'platform: "ensemble"',
        "python": 'backend: "python"',
    }
    for model in catalogue.models():
        folder = repository / model.name
        for version in model.versions:
            (folder / str(version)).mkdir(parents=True)
        parameters = {"execute_delay_ms": str(model.delay_ms)} if model.delay_ms else {}
        (folder / "config.pbtxt").write_text(catalogue.config_text(model, runtimes[model.kind], parameters))
        if any(output.labels for output in model.outputs):
            (folder / "labels.txt").write_text("\n".join(catalogue.LABELS) + "\n")
        if model.source:
            (folder / "1" / "model.py").write_text(model.source)
    onnx.save(graphs.add_sub("INT32", ["batch", 16]), repository / "simple" / "1" / "model.onnx")
    shutil.copytree(EXAMPLES / "digits", repository / "digits")


def onnx_config(name: str, inputs, outputs, max_batch: int = 0) -> str:
    tensors = lambda rows: tuple(catalogue.Tensor(*row) for row in rows)  # noqa: E731
    model = catalogue.Model(name, "onnx", tensors(inputs), tensors(outputs), max_batch)
    return catalogue.config_text(model, ONNX_PLATFORM)


def make_onnx(repository: pathlib.Path) -> None:
    """Every datatype that ONNX holds, and the shapes that go wrong first."""
    for datatype in catalogue.DATATYPES:
        low = datatype.lower()
        one = [("INPUT0", datatype, (-1,))], [("OUTPUT0", datatype, (-1,))]
        put(repository, f"onnx_identity_{low}", graphs.identity(datatype, ["n"]),
            onnx_config(f"onnx_identity_{low}", *one))
        put(repository, f"onnx_batched_{low}", graphs.identity(datatype, ["batch", "n"]),
            onnx_config(f"onnx_batched_{low}", *one, max_batch=8))
    for datatype in ("FP32", "INT32", "INT64", "FP64"):
        put(repository, f"add_sub_{datatype.lower()}", graphs.add_sub(datatype, ["batch", "n"]))
    put(repository, "add_sub_fixed", graphs.add_sub("FP32", [4]))
    put(repository, "no_config", graphs.identity("FP32", ["n", 2]))
    put(repository, "scalar", graphs.scalar())
    put(repository, "empty_output", graphs.empty_output(),
        onnx_config("empty_output", [("INPUT0", "FP32", (-1,))], [("OUTPUT0", "FP32", (-1,)), ("OUTPUT1", "FP32", (-1,))]))
    put(repository, "three_outputs", graphs.three_outputs())
    put(repository, "dynamic_transpose", graphs.dynamic_transpose(),
        onnx_config("dynamic_transpose", [("INPUT0", "FP32", (-1, -1))], [("OUTPUT0", "FP32", (-1, -1))]))
    put(repository, "wrong_rank", graphs.wrong_rank(),
        onnx_config("wrong_rank", [("INPUT0", "FP32", (-1,)), ("SHAPE", "INT64", (-1,))],
                    [("OUTPUT0", "FP32", (-1, -1))]))
    for exported in sorted(EXPORTED.glob("*.onnx")):
        put(repository, exported.stem, onnx.load(exported))
    shutil.copytree(EXAMPLES / "digits", repository / "digits")


def make_broken(repository: pathlib.Path) -> None:
    """Models that must not load; reasons.json says what the reason has to mention."""
    reasons = {}
    vector = [("INPUT0", "FP32", (-1,))], [("OUTPUT0", "FP32", (-1,))]

    def put_broken(name: str, model: onnx.ModelProto | bytes, config: str | None, *reason: str) -> None:
        version = repository / name / "1"
        version.mkdir(parents=True)
        content = model if isinstance(model, bytes) else model.SerializeToString()
        (version / "model.onnx").write_bytes(content)
        if config is not None:
            (repository / name / "config.pbtxt").write_text(config)
        reasons[name] = reason

    good = graphs.identity("FP32", ["n"])
    put_broken("garbage", b"this is not a model\x00\xff" * 64, onnx_config("garbage", *vector), "Internal")
    put_broken("truncated", good.SerializeToString()[:40], onnx_config("truncated", *vector), "Internal")
    put_broken("wrong_declared_rank", good,
               onnx_config("wrong_declared_rank", vector[0], [("OUTPUT0", "FP32", (-1, -1))]),
               "model 'wrong_declared_rank', tensor 'OUTPUT0': the model expects 1 dimensions")
    put_broken("wrong_declared_type", good,
               onnx_config("wrong_declared_type", [("INPUT0", "INT32", (-1,))], vector[1]),
               "unable to load model 'wrong_declared_type'", "TYPE_INT32", "TYPE_FP32")
    put_broken("wrong_input_name", good,
               onnx_config("wrong_input_name", [("NOT_THERE", "FP32", (-1,))], vector[1]), "NOT_THERE")
    put_broken("too_many_inputs", good,
               onnx_config("too_many_inputs", [*vector[0], ("INPUT1", "FP32", (-1,))], vector[1]),
               "configuration expects 2 inputs, model provides 1")
    (repository / "reasons.json").write_text(json.dumps(reasons, indent=1))


def make_light(repository: pathlib.Path) -> None:
    """Well-known nets with weights made up on the fly by the graph itself, a few hundred KB in all."""
    source = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted(source.glob("light_*.onnx")):
        version = repository / path.stem / "1"
        version.mkdir(parents=True)
        shutil.copyfile(path, version / "model.onnx")


PARTS = {"conformance": make_conformance, "onnx": make_onnx, "broken": make_broken, "light": make_light}


def make(out: pathlib.Path, parts=PARTS) -> None:
    """Makes the named repositories under `out`, replacing what was there."""
    for part in parts:
        folder = out / part
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        PARTS[part](folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="make the tests' model repositories")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "generated")
    make(parser.parse_args().out)


if __name__ == "__main__":
    main()
