"""A Python model that asks the identity for its answer, the same for both servers."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        nested = pb_utils.InferenceRequest(model_name="identity_fp32", requested_output_names=["OUTPUT0"], inputs=[given])
        answer = nested.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "OUTPUT0")])
