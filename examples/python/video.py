"""How long does each frame of a video take at 60 per second, through shared memory? Plotted.

    python examples/python/video.py latency.png [address]      # needs: pip install matplotlib
"""

import sys
import time

from matplotlib import pyplot

import nerite

client = nerite.connect(*sys.argv[2:])
model = client.model("identity_fp32")
frame = model.input("INPUT0", [640 * 480])  # the model reads this very memory
begun, starts, latencies = time.perf_counter(), [], []
for number in range(60):
    time.sleep(max(0.0, begun + number / 60 - time.perf_counter()))
    frame[:] = number  # a camera would write here
    starts.append(time.perf_counter())
    assert model().OUTPUT0[-1] == number
    latencies.append((time.perf_counter() - starts[-1]) * 1e3)
pyplot.plot(latencies, "."), pyplot.xlabel("frame"), pyplot.ylabel("ms"), pyplot.ylim(bottom=0)
pyplot.savefig(sys.argv[1])
print(f"{len(latencies)} frames in {starts[-1] - begun:.3f} s, {sorted(latencies)[30]:.2f} ms in the middle, {max(latencies):.2f} ms at most")
print(f"{client.copied_bytes} bytes were copied")
