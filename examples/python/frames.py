"""How long does a frame of a video take at 60 per second, written where the model reads it?

    python examples/python/frames.py [address]
"""

import sys
import time

import numpy as np

import nerite

client = nerite.connect(*sys.argv[1:])
model = client.model("identity_fp32")
frame = model.input("INPUT0", [640 * 480])  # the model reads this very memory
times = []
for number in range(60):
    frame[:] = number  # a camera would write here
    begun = time.perf_counter()
    assert model().OUTPUT0[-1] == number
    times.append((time.perf_counter() - begun) * 1e3)
    time.sleep(max(0, 1 / 60 - times[-1] / 1e3))
print(f"{np.median(times):.2f} ms for a frame, {max(times):.2f} ms at most; {client.copied_bytes} bytes were copied")
