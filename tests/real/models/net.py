"""How does a net of PyTorch read digits, with tensors that come and go by DLPack?"""

import pathlib

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch import nn
from torch.utils.dlpack import from_dlpack, to_dlpack


class TritonPythonModel:
    def initialize(self, args):
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.net.load_state_dict(torch.load(pathlib.Path(args["model_repository"]) / args["model_version"] / "net.pt"))
        self.net.eval()

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "image")) for request in requests]

    def answer(self, image):
        given = from_dlpack(image.to_dlpack())
        made = self.net(given / 16).softmax(-1)
        output = pb_utils.Tensor.from_dlpack("probabilities", to_dlpack(made))
        # The tensor of the answer lies where the net wrote it.
        shares = output.as_numpy().ctypes.data == made.data_ptr()
        facts = np.array([[given.dtype == torch.float32, shares]] * len(made))
        return pb_utils.InferenceResponse([output, pb_utils.Tensor("facts", facts)])
