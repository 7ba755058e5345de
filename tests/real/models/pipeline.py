"""How does a pipeline of scikit-learn classify digits?"""

import pathlib

import joblib
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.pipeline = joblib.load(pathlib.Path(args["model_repository"]) / args["model_version"] / "pipeline.joblib")

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "image").as_numpy()) for request in requests]

    def answer(self, images):
        return pb_utils.InferenceResponse([pb_utils.Tensor("digit", self.pipeline.predict(images).reshape(-1, 1))])
