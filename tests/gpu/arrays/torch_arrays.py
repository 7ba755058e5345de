"""What can a model do with arrays on a GPU? By PyTorch and the real driver. ``stand_in.py`` has the same functions."""

import numpy as np
import torch

# About a tenth of a second of a GPU's time.
SLEEP_CYCLES = 200_000_000


def make(elements, datatype=None, number=0):
    """A tensor that is written by work that lasts, on a stream of its own. BF16 is given as uint16."""
    host = torch.from_numpy(np.asarray(elements, order="C"))
    if datatype == "BF16":
        host = host.view(torch.bfloat16)
    made = torch.empty(host.shape, dtype=host.dtype, device=f"cuda:{number}")
    source = host.to(f"cuda:{number}")
    torch.cuda.synchronize(number)
    stream = torch.cuda.Stream(number)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        made.copy_(source)
    made.record_stream(stream)
    source.record_stream(stream)
    return Written(made, stream)


class Written:
    """A tensor, and the stream that it is written on."""

    def __init__(self, tensor, stream):
        self.tensor, self.stream = tensor, stream

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **wanted):
        with torch.cuda.stream(self.stream):
            return self.tensor.__dlpack__(**wanted)


def capsule(array):
    """A capsule of the tensor, which tells nothing of streams."""
    return torch.utils.dlpack.to_dlpack(array.tensor)


def waits():
    """It is not counted here: the elements themselves tell whether somebody waited."""
    return None


def page_locked():
    """It is not counted here."""
    return None


def opened():
    """It is not counted here."""
    return None


def live():
    """How much there is of all tensors, in bytes."""
    return torch.cuda.memory_allocated()


def read(tensor):
    """The elements of a tensor that speaks DLPack: a copy of their bytes, and their shape."""
    found = torch.from_dlpack(tensor)
    bytes_ = found.contiguous().reshape(-1).view(torch.uint8) if found.numel() else torch.empty(0, dtype=torch.uint8)
    return bytes_.cpu().numpy(), list(found.shape)


def address(tensor):
    """Where the elements of a tensor that speaks DLPack lie."""
    return torch.from_dlpack(tensor).data_ptr()
