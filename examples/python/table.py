"""How does a table of Arrow go to a model, and come back as a table of pandas, through a lease?

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
