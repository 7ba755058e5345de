"""Does PyTriton, NVIDIA's own package, serve functions of its process through another server in the place of its `tritonserver`?

    python tests/programs/pytriton_functions.py FOLDER PROGRAM PORT PORT PORT

The first model is the one that the package checks itself with (`pytriton.check.add_sub`). The last line of the output has the results as JSON.
"""

import asyncio
import concurrent.futures
import json
import os
import pathlib
import sys
import threading

import numpy as np
import pytriton.triton
from pytriton.check.add_sub import _add_sub
from pytriton.client import AsyncioDecoupledModelClient, AsyncioModelClient, DecoupledModelClient, FuturesModelClient, ModelClient
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.decorators import batch, first_value, group_by_keys, group_by_values, sample
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def replace_server(folder, program):
    """The package copies what lies in that directory to its workspace, and starts bin/tritonserver out of it."""
    (folder / "dist" / "bin").mkdir(parents=True)
    for name in ("backends", "caches"):
        os.symlink(pytriton.triton.TRITONSERVER_DIST_DIR / name, folder / "dist" / name)
    os.symlink(program, folder / "dist" / "bin" / "tritonserver")
    pytriton.triton.TRITONSERVER_DIST_DIR = folder / "dist"


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


@batch
@group_by_values("key")
def group(key):
    """Each row becomes the number of rows that have its value."""
    return {"rows": np.full(key.shape, len(key), np.int32)}


@group_by_keys
@batch
def present(**inputs):
    """Each row becomes the number of inputs."""
    return [np.full((len(next(iter(inputs.values()))), 1), len(inputs), np.int32)]


@sample
def reverse(values):
    return [values[::-1]]


def instances(count):
    """Functions of a model of several instances. Each answers with its number, when all of them run."""
    all_run = threading.Barrier(count, timeout=60)

    def make(number):
        @batch
        def one(values):
            all_run.wait()
            return [np.full(values.shape, number, np.int32)]

        return one

    return [make(number) for number in range(count)]


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
    wholes = lambda name, is_optional=False: Tensor(name=name, dtype=np.int32, shape=(1,), optional=is_optional)  # noqa: E731
    triton.bind("Group", group, [wholes("key")], [wholes("rows")], config=batched)
    triton.bind("Present", present, [wholes("one"), wholes("two", is_optional=True)], [wholes("inputs")], config=batched)
    triton.bind("Reverse", reverse, [numbers("values")], [numbers("reversed")], config=ModelConfig(batching=False))
    triton.bind("Instances", instances(2), [numbers("values", (1,))], [wholes("number")], config=ModelConfig(max_batch_size=1))
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


async def asynchronous_results_of(url):
    ones = np.ones((1, 1), np.float32)
    async with AsyncioModelClient(url, "Instances") as client:
        both = await asyncio.gather(*(client.infer_batch(ones) for _ in range(2)))
        yield "instances", sorted(one["number"].item() for one in both)
    async with AsyncioModelClient(url, "Reverse") as client:
        yield "reversed", (await client.infer_sample(np.float32([1, 2, 3])))["reversed"].tolist()
    keys = np.array([[5], [6], [5]], np.int32)
    async with AsyncioModelClient(url, "Group") as client:
        yield "grouped", (await client.infer_batch(keys))["rows"].ravel().tolist()
    async with AsyncioModelClient(url, "Present") as client:
        few, all_of_them = await asyncio.gather(client.infer_batch(one=keys), client.infer_batch(one=keys, two=keys))
        yield "present", [few["inputs"].ravel().tolist(), all_of_them["inputs"].ravel().tolist()]


async def collected(url):
    return {name: value async for name, value in asynchronous_results_of(url)}


async def count_again(url):
    async with AsyncioDecoupledModelClient(url, "Count") as client:
        return [int(one["at"].item()) async for one in client.infer_sample(np.array([3], np.int32))]


def results(http, grpc):
    found = {protocol: dict(results_of(f"{protocol}://127.0.0.1:{port}")) for protocol, port in (("http", http), ("grpc", grpc))}
    for protocol, port in (("http", http), ("grpc", grpc)):
        found[protocol] |= asyncio.run(collected(f"{protocol}://127.0.0.1:{port}"))
    found["counted again"] = asyncio.run(count_again(f"grpc://127.0.0.1:{grpc}"))
    with DecoupledModelClient(f"grpc://127.0.0.1:{grpc}", "Count") as client:
        found["counted"] = [int(one["at"].reshape(-1)[0]) for one in client.infer_sample(np.array([3], np.int32))]
    with FuturesModelClient(f"grpc://127.0.0.1:{grpc}", "AddSub") as client:
        ones = np.ones((1, 1), np.float32)
        found["future"] = client.infer_batch(ones, ones).result()["add"].tolist()
    return found


def main():
    folder, program, http, grpc, metrics = pathlib.Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
    replace_server(folder, program)
    config = TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics, http_address="127.0.0.1", exit_timeout_secs=10)
    with Triton(config=config, workspace=str(folder / "workspace")) as triton:
        bind(triton)
        triton.run()
        found = results(http, grpc)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
