"""How do the worker processes of a DataLoader of PyTorch share one pool of leases?

Each worker writes its batch where the model reads it. Only the number of the batch is sent from process to process.

    python examples/python/loader.py [address]      # needs: pip install torch
"""

import pathlib
import sys

import numpy as np
from torch.utils.data import DataLoader

import nerite

batches = np.fromfile(pathlib.Path(__file__).parents[1] / "digits" / "samples.bin", np.uint8)[4:].reshape(-1, 20, 65)
client = nerite.connect(*sys.argv[1:])
assert client.transport == "session", "only the buffers of a session are memory that forked workers share"
# Two workers have two batches ready each, and one batch is asked for. Forked workers have the buffers mapped too.
models = [client.model("digits") for _ in range(2 * 2 + 1)]
images = [model.input("image", [20, 64]) for model in models]


def write(number: int) -> int:
    images[number % len(images)][:] = batches[number, :, :64]  # in the worker
    return number


numbers = DataLoader(range(len(batches)), batch_size=None, collate_fn=write, num_workers=2, prefetch_factor=2, multiprocessing_context="fork")
right = sum((models[n % len(models)]().probabilities.argmax(axis=1) == batches[n, :, 64]).sum() for n in numbers)
print(f"{right} of {batches[..., 0].size} digits are right, from 2 workers; {client.copied_bytes} bytes were copied")
