"""Does PyTriton, NVIDIA's own package, serve functions of its process through another server in the place of its `tritonserver`?

    python tests/programs/pytriton_examples.py FOLDER PROGRAM PORT PORT PORT

The first model is the one that the package checks itself with (`pytriton.check.add_sub`). The last line of the output has the results as JSON.
"""

import concurrent.futures
import json
import os
import pathlib
import sys

import numpy as np
import pytriton.triton
from pytriton.check.add_sub import _add_sub
from pytriton.client import DecoupledModelClient, FuturesModelClient, ModelClient
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.decorators import batch, first_value
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def upper(words):
    return [np.char.upper(words.astype("S"))]


@batch
@first_value("factor")
def scale(values, factor):
    return [values * factor]


@batch
def refuse(values):
    raise ValueError("this model does not want to")


def count(requests):
    """A decoupled model: each request is answered as often as it says."""
    (request,) = requests
    for at in range(int(request["n"].reshape(-1)[0])):
        yield [{"at": np.array([at], np.int32)}]


def numbers(name=None, shape=(-1,), dtype=np.float32):
    return Tensor(name=name, dtype=dtype, shape=shape) if name else Tensor(dtype=dtype, shape=shape)


def bind(triton):
    batched = ModelConfig(max_batch_size=16, batcher=DynamicBatcher(max_queue_delay_microseconds=2000))
    pair = [numbers(), numbers()]
    triton.bind("AddSub", _add_sub, pair, [numbers("add"), numbers("sub")], config=ModelConfig(max_batch_size=128), strict=True)
    words = Tensor(name="words", dtype=bytes, shape=(-1,))
    triton.bind("Upper", upper, [words], [Tensor(name="upper", dtype=bytes, shape=(-1,))], config=batched)
    triton.bind("Scale", scale, [numbers("values"), numbers("factor", (1,))], [numbers("scaled")], config=batched)
    triton.bind("Refuse", refuse, [numbers("values")], [numbers("none")], config=batched)
    whole = ModelConfig(batching=False, decoupled=True)
    triton.bind("Count", count, [numbers("n", (1,), np.int32)], [numbers("at", (1,), np.int32)], config=whole)


def results_of(url):
    ones = np.ones((2, 1), np.float32)
    with ModelClient(url, "AddSub") as client:
        result = client.infer_batch(ones, ones)
        yield "add", result["add"].tolist()
        yield "sub", result["sub"].tolist()
        yield "max_batch_size", client.model_config.max_batch_size
    with ModelClient(url, "Upper") as client:
        yield "upper", [one.decode() for one in client.infer_sample(np.array([b"a", b"bc"]))["upper"]]
    with ModelClient(url, "Refuse") as client:
        try:
            client.infer_sample(np.ones(1, np.float32))
        except PyTritonClientInferenceServerError as error:
            yield "refused", "this model does not want to" in str(error)
    with ModelClient(url, "Scale") as client:
        clients = [ModelClient(url, "Scale") for _ in range(4)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            one = lambda at: clients[at].infer_sample(np.full(3, at, np.float32), np.float32([2]))["scaled"].tolist()  # noqa: E731
            yield "scaled", list(pool.map(one, range(4)))
        for each in clients:
            each.close()


def results(http, grpc):
    found = {protocol: dict(results_of(f"{protocol}://127.0.0.1:{port}")) for protocol, port in (("http", http), ("grpc", grpc))}
    with DecoupledModelClient(f"grpc://127.0.0.1:{grpc}", "Count") as client:
        found["counted"] = [int(one["at"].reshape(-1)[0]) for one in client.infer_sample(np.array([3], np.int32))]
    with FuturesModelClient(f"grpc://127.0.0.1:{grpc}", "AddSub") as client:
        ones = np.ones((1, 1), np.float32)
        found["future"] = client.infer_batch(ones, ones).result()["add"].tolist()
    return found


def main():
    folder, program, http, grpc, metrics = pathlib.Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
    # The package copies what lies there to its workspace, and starts bin/tritonserver out of it.
    (folder / "dist" / "bin").mkdir(parents=True)
    for name in ("backends", "caches"):
        os.symlink(pytriton.triton.TRITONSERVER_DIST_DIR / name, folder / "dist" / name)
    os.symlink(program, folder / "dist" / "bin" / "tritonserver")
    pytriton.triton.TRITONSERVER_DIST_DIR = folder / "dist"
    config = TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics, http_address="127.0.0.1", exit_timeout_secs=10)
    with Triton(config=config, workspace=str(folder / "workspace")) as triton:
        bind(triton)
        triton.run()
        found = results(http, grpc)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
