"""Which digit is on a picture?

    python examples/python/classify_picture.py picture.png [address]
"""

import sys

import numpy as np
from PIL import Image

import nerite

# White on black, 8 by 8 pixels from 0 to 16: what the model was trained with.
picture = Image.open(sys.argv[1]).convert("L").resize((8, 8), Image.Resampling.BOX)
pixels = np.asarray(picture, np.float32).reshape(1, 64) / 255 * 16

client = nerite.connect(*sys.argv[2:])
probabilities = client.model("digits")(image=pixels).probabilities[0]
print(f"{probabilities.argmax()}, with a probability of {probabilities.max():.2f}")
