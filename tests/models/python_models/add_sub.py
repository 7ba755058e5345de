"""The classic: OUTPUT0 is the sum of the inputs, OUTPUT1 their difference, in the datatypes of the configuration."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.dtypes = [
            pb_utils.triton_string_to_numpy(pb_utils.get_output_config_by_name(config, name)["data_type"])
            for name in ("OUTPUT0", "OUTPUT1")
        ]

    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            made = [(left + right).astype(self.dtypes[0]), (left - right).astype(self.dtypes[1])]
            tensors = [pb_utils.Tensor(f"OUTPUT{n}", one) for n, one in enumerate(made)]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses

    def finalize(self):
        print("add_sub is finalized", flush=True)
