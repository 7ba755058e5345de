#!/usr/bin/env python3
"""How are the models of the tests with real libraries trained, and what do they say?

    python3 tests/real/train.py FOLDER      # needs torch and scikit-learn; takes seconds

scikit-learn's 8x8 handwritten digits, the last 297 held out. It writes to FOLDER

* net.pt: the weights of a net of PyTorch (64 -> 32 -> 10), about 10 KB
* pipeline.joblib: a pipeline of scikit-learn, scaled and classified by a support vector machine
* samples.npz: the held-out images, their digits, and what both models say of them here
"""

import pathlib
import sys

import joblib
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import nn

HELD_OUT, STEPS, SEED = 297, 150, 7


def train_net(images: np.ndarray, digits: np.ndarray) -> nn.Module:
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    given, wanted = torch.from_numpy(images / 16), torch.from_numpy(digits)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(given), wanted).backward()
        optimizer.step()
    return net.eval()


def main(folder: pathlib.Path) -> None:
    data = load_digits()
    images, digits = data.data.astype(np.float32), data.target.astype(np.int64)
    (known, held), (known_digits, held_digits) = np.split(images, [-HELD_OUT]), np.split(digits, [-HELD_OUT])
    net = train_net(known, known_digits)
    torch.save(net.state_dict(), folder / "net.pt")
    pipeline = make_pipeline(StandardScaler(), SVC()).fit(known, known_digits)
    joblib.dump(pipeline, folder / "pipeline.joblib")
    with torch.no_grad():
        probabilities = net(torch.from_numpy(held / 16)).softmax(-1).numpy()
    np.savez(folder / "samples.npz", images=held, digits=held_digits, probabilities=probabilities, classes=pipeline.predict(held))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
