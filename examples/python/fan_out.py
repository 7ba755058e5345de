"""How are three models asked at the same time with asyncio?

    python examples/python/fan_out.py [address]
"""

import asyncio
import sys

import numpy as np

import nerite


async def main(client: nerite.Client) -> None:
    simple, digits, identity = (client.model(name) for name in ("simple", "digits", "identity_fp32"))
    ones = np.ones((1, 16), np.int32)
    sums, digit, same = await asyncio.gather(simple.aio(ones, ones), digits.aio(np.zeros((1, 64), np.float32)), identity.aio([1.5]))
    print(sums.OUTPUT0[0, 0], digit.probabilities.argmax(), same.OUTPUT0[0])


asyncio.run(main(nerite.connect(*sys.argv[1:])))
