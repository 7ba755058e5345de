"""How long does each frame of a video take at 60 per second, through shared memory? Plotted.

    python examples/python/video.py latency.png [address [seconds]]      # needs: pip install matplotlib
"""

import sys
import time

import matplotlib
import numpy as np

import nerite

matplotlib.use("Agg")  # into a file, without a screen
from matplotlib import pyplot  # noqa: E402

picture, address, seconds = (sys.argv[1:] + [None, None, None])[:3]
client = nerite.connect(address)
model = client.model("identity_fp32")
frame = model.input("INPUT0", [640 * 480])  # the model reads this very memory
begun = time.perf_counter()
latencies = []
for number in range(int(60 * float(seconds or 5))):
    time.sleep(max(0.0, begun + number / 60 - time.perf_counter()))
    frame[:] = number  # a camera would write here
    begun = time.perf_counter()
    assert model().OUTPUT0[-1] == number
    latencies.append((time.perf_counter() - begun) * 1e3)

pyplot.plot(np.arange(len(latencies)) / 60, latencies, ".", label="a frame")
pyplot.axhline(1e3 / 60, color="tab:red", label="time between two frames")
pyplot.xlabel("s"), pyplot.ylabel("ms"), pyplot.ylim(bottom=0), pyplot.legend()
pyplot.title(f"640 by 480 floats over {client.transport}, {client.copied_bytes} bytes copied by the client")
pyplot.savefig(picture or "latency.png")
print(f"{len(latencies)} frames, {np.median(latencies):.2f} ms in the middle, {max(latencies):.2f} ms at most")
