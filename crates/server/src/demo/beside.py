"""How long does one call take from Python, by nerite's client and by tritonclient's ways?

`nerite demo` runs it: python3 -c <this> <host:port of HTTP> <host:port of gRPC> <session socket> <bytes>...

Each line of the output is a way and its medians in µs, one for each size, parted by tabs. A client that is not installed has no line.
"""

import os
import statistics
import sys
import time

import numpy as np

MODEL, SECONDS, TIMES_MIN = "identity_fp32", 0.25, 5


def median_us(call):
    for _ in range(TIMES_MIN):
        call()
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < TIMES_MIN or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def by_nerite(array):
    import nerite

    model = nerite.connect(f"unix:{SOCKET}").model(MODEL)

    def call():
        assert len(model(array).OUTPUT0) == len(array)

    return call


def inline(triton, url):
    def ready(array):
        client = triton.InferenceServerClient(url)

        def call():
            given = triton.InferInput("INPUT0", array.shape, "FP32")
            given.set_data_from_numpy(array)
            assert len(client.infer(MODEL, [given]).as_numpy("OUTPUT0")) == len(array)

        return call

    return ready


def shared(triton, url):
    import tritonclient.utils.shared_memory as shm

    def ready(array):
        client, name = triton.InferenceServerClient(url), f"nerite_demo_python_{os.getpid()}"
        region = shm.create_shared_memory_region(name, f"/{name}", 2 * array.nbytes)
        client.register_system_shared_memory(name, f"/{name}", 2 * array.nbytes)

        def call():
            shm.set_shared_memory_region(region, [array])
            given, requested = triton.InferInput("INPUT0", array.shape, "FP32"), triton.InferRequestedOutput("OUTPUT0")
            given.set_shared_memory(name, array.nbytes)
            requested.set_shared_memory(name, array.nbytes, array.nbytes)
            client.infer(MODEL, [given], outputs=[requested])
            assert len(shm.get_contents_as_numpy(region, np.float32, array.shape, array.nbytes)) == len(array)

        def end():
            client.unregister_system_shared_memory(name)
            shm.destroy_shared_memory_region(region)

        call.end = end
        return call

    return ready


def show(way, ready):
    medians = []
    for size in SIZES:
        call = ready(np.ones(size // 4, np.float32))
        try:
            medians.append(f"{median_us(call):.1f}")
        finally:
            getattr(call, "end", lambda: None)()
    print(way, *medians, sep="\t", flush=True)


HTTP, GRPC, SOCKET, *SIZES = sys.argv[1:]
SIZES = [int(size) for size in SIZES]
for protocol, url in (("http", HTTP), ("grpc", GRPC)):
    try:
        triton = __import__(f"tritonclient.{protocol}", fromlist=[""])
    except (ImportError, RuntimeError):  # what tritonclient raises where a library of its extra is missing
        continue
    show(f"tritonclient.{protocol}, inline", inline(triton, url))
    show(f"tritonclient.{protocol}, shared memory", shared(triton, url))
try:
    import nerite  # noqa: F401
except ImportError:
    sys.exit()
show("nerite, one call", by_nerite)
