"""What comes in as INPUTn goes out as OUTPUTn, whatever its datatype. With the parameter `wait_ms` it waits before it
looks, with `steps` it looks at a part at a time and waits in between."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {key: one["string_value"] for key, one in config.get("parameters", {}).items()}
        self.wait_s = float(parameters.get("wait_ms", 0)) / 1000
        self.steps = int(parameters.get("steps", 0))
        self.datatypes = {one["name"]: one["data_type"] for one in config["input"]}

    def execute(self, requests):
        time.sleep(self.wait_s)
        return [pb_utils.InferenceResponse([self.copy(one) for one in request.inputs()]) for request in requests]

    def copy(self, tensor):
        name = tensor.name().replace("INPUT", "OUTPUT")
        if self.datatypes[tensor.name()] == "TYPE_BF16":  # which has no numpy form
            return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())
        array = tensor.as_numpy()
        return pb_utils.Tensor(name, self.slowly(array) if self.steps else array)

    def slowly(self, array):
        made = np.empty_like(array)
        for source, target in zip(np.array_split(array, self.steps), np.array_split(made, self.steps)):
            target[...] = source
            time.sleep(self.wait_s)
        return made
