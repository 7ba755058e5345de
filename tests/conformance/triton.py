#!/usr/bin/env python3
"""How is the real Triton 2.51 brought to serve the catalogue?

The PyPI wheel nvidia-pytriton 0.7.0 contains the server and its Python backend, and no other backend. So every model
of the catalogue is made as a Python model of the same name and signature; ONNX graphs run in it by onnxruntime.

`cargo xtask oracle` installs the wheel (tests/setup_oracle.py).
"""

import os
import pathlib
import shutil
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "models")]

import catalogue  # noqa: E402
import setup_oracle  # noqa: E402

# One model.py for all identity and ONNX models: what to do is in the configuration.
GENERIC_MODEL = '''\
import json
import os
import time

import numpy
import triton_python_backend_utils as pb_utils


def readable(array):
    """Strings come as bytes, and onnxruntime wants them as text."""
    if array.dtype != object:
        return array
    return numpy.array([one.decode() for one in array.reshape(-1)], dtype=object).reshape(array.shape)


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.delay_s = float(parameters.get("execute_delay_ms", "0")) / 1000
        # triton_dtype() of a tensor cannot be called in 2.51, so the datatype is taken from here.
        self.inputs = {one["name"]: one["data_type"] for one in config["input"]}
        self.session = None
        graph = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        if os.path.exists(graph):
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            options.inter_op_num_threads = 1
            self.session = onnxruntime.InferenceSession(graph, options)

    def execute(self, requests):
        time.sleep(self.delay_s)
        return [pb_utils.InferenceResponse(self.outputs(request)) for request in requests]

    def outputs(self, request):
        if self.session is not None:
            feed = {tensor.name(): readable(tensor.as_numpy()) for tensor in request.inputs()}
            names = [output.name for output in self.session.get_outputs()]
            return [pb_utils.Tensor(*pair) for pair in zip(names, self.session.run(names, feed))]
        made = []
        for given, datatype in self.inputs.items():
            asked = given.replace("INPUT", "OUTPUT")
            tensor = pb_utils.get_input_tensor_by_name(request, given)
            if tensor is None:
                continue
            if datatype == "TYPE_BF16":  # which has no numpy form here
                made.append(pb_utils.Tensor.from_dlpack(asked, tensor.to_dlpack()))
            else:
                made.append(pb_utils.Tensor(asked, tensor.as_numpy()))
        return made
'''


def environment_path() -> pathlib.Path:
    return setup_oracle.place("triton")


def is_installed() -> bool:
    return environment_path().exists()


def site_packages() -> pathlib.Path:
    """Where the wheel is installed; installs it if it is missing."""
    return setup_oracle.packages(setup_oracle.installed("triton"))


def backend_directory(out: pathlib.Path) -> pathlib.Path:
    """A backend folder with the stub of the interpreter's version beside the backend, as the server wants it."""
    inside = site_packages() / "pytriton" / "tritonserver"
    target = out / "python"
    if not target.exists():
        shutil.copytree(inside / "backends" / "python", target)
        minor = site_packages().parent.name.removeprefix("python")
        shutil.copy(inside / "python_backend_stubs" / minor / "triton_python_backend_stub", target)
    return out


def environment() -> dict[str, str]:
    """The stub takes the first `python3` of PATH as its home: its packages are what models see."""
    libraries = [str(site_packages() / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR") or ""]
    found = dict(os.environ)
    found["LD_LIBRARY_PATH"] = ":".join(filter(None, [*libraries, found.get("LD_LIBRARY_PATH", "")]))
    found["PATH"] = f"{environment_path() / 'bin'}:{found['PATH']}"
    return found


def command(repository: pathlib.Path, scratch: pathlib.Path) -> tuple[list[str], dict[str, str]]:
    """The command line up to the repository, and the environment."""
    inside = site_packages() / "pytriton" / "tritonserver"
    # Without the first flag the server asks for an NVIDIA driver's counters at each start.
    flags = [
        "--allow-gpu-metrics=false", f"--backend-directory={backend_directory(scratch / 'backends')}",
        f"--cache-directory={inside / 'caches'}",
    ]  # fmt: skip
    return [str(inside / "bin" / "tritonserver"), f"--model-repository={repository}", *flags], environment()


def put(folder: pathlib.Path, model: catalogue.Model) -> None:
    """Writes one catalogue model as a Python model."""
    for version in model.versions:
        (folder / str(version)).mkdir(parents=True)
        if model.kind != "ensemble":
            (folder / str(version) / "model.py").write_text(model.source or GENERIC_MODEL)
    runtime = 'platform: "ensemble"' if model.kind == "ensemble" else 'backend: "python"'
    parameters = {"execute_delay_ms": str(model.delay_ms)} if model.delay_ms else {}
    (folder / "config.pbtxt").write_text(catalogue.config_text(model, runtime, parameters))
    if any(output.labels for output in model.outputs):
        (folder / "labels.txt").write_text("\n".join(catalogue.LABELS) + "\n")


def make_repository(repository: pathlib.Path, generated: pathlib.Path) -> None:
    """The catalogue for this server; ONNX graphs are taken from the repository made for nerite."""
    for model in catalogue.models():
        put(repository / model.name, model)
    shutil.copy(generated / "simple" / "1" / "model.onnx", repository / "simple" / "1")
    digits = repository / "digits"
    shutil.copytree(generated / "digits", digits)
    (digits / "1" / "model.py").write_text(GENERIC_MODEL)
    config = (digits / "config.pbtxt").read_text()
    (digits / "config.pbtxt").write_text(config.replace('platform: "onnxruntime_onnx"', 'backend: "python"'))
