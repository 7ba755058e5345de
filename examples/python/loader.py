"""How do the worker processes of a DataLoader of PyTorch share one pool of leases?

Each worker writes its batch where the model reads it. No batch is sent from process to process, only its number and labels.

    python examples/python/loader.py [host:port]      # needs: pip install torch
"""

import pathlib
import sys

import numpy as np
from torch.utils.data import DataLoader, Dataset

import nerite.http as httpclient

BATCH, WORKERS, AHEAD = 20, 2, 2
samples = np.fromfile(pathlib.Path(__file__).parents[1] / "digits" / "samples.bin", np.uint8)[4:].reshape(-1, 65)
client = httpclient.InferenceServerClient(*(sys.argv[1:] or ["localhost:8000"]))
# A buffer for each batch that workers may have ready, and one for the batch that is asked for. Forked workers have them mapped too.
pool = [client.register_input_tensor_with_shared_memory([BATCH, 64], "FP32") for _ in range(WORKERS * AHEAD + 1)]
images = [handle.as_numpy() for handle in pool]


class Digits(Dataset):
    def __len__(self) -> int:
        return len(samples) // BATCH

    def __getitem__(self, number: int) -> tuple[int, list[int]]:
        rows = samples[number * BATCH : (number + 1) * BATCH]
        images[number % len(pool)][:] = rows[:, :64]  # in the worker
        return number, rows[:, 64].tolist()


right = 0
for number, labels in DataLoader(Digits(), batch_size=None, num_workers=WORKERS, prefetch_factor=AHEAD, multiprocessing_context="fork"):
    image = httpclient.InferInput("image", [BATCH, 64], "FP32").set_shared_memory_request(pool[number % len(pool)])
    probabilities = client.infer("digits", [image], outputs=[httpclient.InferOutput("probabilities")]).as_numpy("probabilities")
    right += int((probabilities.argmax(axis=1) == labels).sum())
print(f"{right} of {len(samples)} digits are right, from {WORKERS} workers, over {client.buffer_transport}")
