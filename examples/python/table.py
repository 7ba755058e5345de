"""How do a table of Arrow and a frame of pandas go to a model, and come back as a frame of pandas, through a lease?

    python examples/python/table.py [address]      # needs: pip install pandas pyarrow
"""

import pathlib
import sys

import numpy as np
import pandas as pd
import pyarrow as pa

import nerite

samples = np.fromfile(pathlib.Path(__file__).parents[1] / "digits" / "samples.bin", np.uint8)[4:].reshape(-1, 65)[:64]
table = pa.table({f"pixel_{at}": samples[:, at] for at in range(64)})  # what pyarrow.parquet.read_table gives
client = nerite.connect(*sys.argv[1:])
digits = client.model("digits")
image = digits.input("image", [table.num_rows, 64])  # the memory that the model reads
for at, column in enumerate(table.columns):
    image[:, at] = column  # converted from bytes to floats on the way
out = digits().probabilities
frame = pd.DataFrame(out, copy=False)  # over the memory that the model wrote
print(f"{(frame.idxmax(axis=1) == samples[:, 64]).sum()} of {len(frame)} right, {frame.max(axis=1).mean():.2f} sure")
print(f"shares the response's memory: {np.shares_memory(frame.to_numpy(), out)}; {client.copied_bytes} bytes were copied")

# A frame of pandas whose column "image" has the 64 pixels of each row. Its memory is Arrow's, and is read as such.
pixels = pa.FixedSizeListArray.from_arrays(pa.array(samples[:, :64].reshape(-1)), 64)
given = pd.DataFrame({"image": pd.Series(pixels, dtype=pd.ArrowDtype(pixels.type)), "digit": samples[:, 64]})
given["guess"] = digits(image=given["image"]).probabilities.argmax(axis=1)
print(f"from a frame of pandas: {(given.guess == given.digit).sum()} of {len(given)} right")
