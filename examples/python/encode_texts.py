"""Which text is the most similar to a question?

The model is that of make_text_encoder.py.

    python examples/python/encode_texts.py [address]
"""

import sys
import zlib

import numpy as np

import nerite

TEXTS = ["How do I reset my password?", "Where is my parcel?", "May I pay by credit card?", "Which sizes of shoes are there?"]
QUESTIONS = ["i forgot the password", "paying by card", "my parcel did not arrive"]


def tokens(texts: list[str]) -> np.ndarray:
    """Groups of three letters as numbers from 1 to 511, zeros behind them."""
    groups = [[f" {text.lower()} "[at : at + 3] for at in range(len(text))] for text in texts]
    numbers = np.zeros((len(texts), max(map(len, groups))), np.int64)
    for row, found in zip(numbers, groups):
        row[: len(found)] = [1 + zlib.crc32(group.encode()) % 511 for group in found]
    return numbers


encoder = nerite.connect(*sys.argv[1:]).model("text_encoder")
known, questions = (encoder(tokens=tokens(texts)).embedding for texts in (TEXTS, QUESTIONS))
for question, likeness in zip(QUESTIONS, questions @ known.T):
    print(f"{question}: {TEXTS[likeness.argmax()]} ({likeness.max():.2f})")
