"""How are 200 handwritten digits classified, many in one packet?

    nerite serve --model-repository examples/models     # and in another shell:
    python examples/python/classify_digits.py           # or with an address, http://host:8000
"""

import pathlib
import sys

import numpy as np

import nerite

samples = np.fromfile(pathlib.Path(__file__).parents[1] / "digits" / "samples.bin", np.uint8)[4:].reshape(-1, 65)
images, labels = samples[:, :64].astype(np.float32), samples[:, 64]

with nerite.connect(*sys.argv[1:]) as client:
    digits = client.model("digits", batch=False)
    found = [out.probabilities.argmax() for out in digits.batch(list(images))]
    print(f"{np.sum(found == labels)} of {len(labels)} digits are right, over {client.transport}")
