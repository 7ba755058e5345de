"""How do worker processes, made by fork, share what their parent opened?

    python examples/python/workers.py [address]
"""

import multiprocessing
import sys

import numpy as np

import nerite

simple = nerite.connect(*sys.argv[1:]).model("simple")


def work(number: int) -> int:
    # After a fork, each process connects by itself; the model's name and tensors it has already.
    return int(simple(np.full((1, 16), number, np.int32), np.ones((1, 16), np.int32)).OUTPUT0.sum())


if __name__ == "__main__":
    work(0)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        print(pool.map(work, range(8)))
