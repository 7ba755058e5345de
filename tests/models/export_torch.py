#!/usr/bin/env python3
"""Which nets do the tests take from PyTorch's exporter, and how were their files made?

    apt-get install python3-torch
    /usr/bin/python3 tests/models/export_torch.py     # any Python with torch; writes tests/models/exported

PyTorch is too large to install for every run of the tests, so the files are in the repository, some 600 KB in all. The weights are
PyTorch's own initial ones under a fixed seed: what is tested is that graphs as the exporter writes them are served, and give
the numbers that ONNX Runtime gives in process. Exported by PyTorch 1.13, opset 16, open batch and length.
"""

import pathlib

import torch
from torch import nn

OUT = pathlib.Path(__file__).resolve().parent / "exported"
SEED = 20
WORDS, POSITIONS, HIDDEN, HEADS, LAYERS = 200, 64, 64, 4, 2
FEATURES = 8


class Encoder(nn.Module):
    """A BERT-like encoder: embeddings of words and positions, self-attention with a mask, a pooled answer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.positions = nn.Embedding(POSITIONS, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.pool = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, input_ids, attention_mask):
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        hidden = self.norm(self.words(input_ids) + self.positions(positions))
        bias = (1.0 - attention_mask[:, None, None, :].to(hidden.dtype)) * -10000.0
        for layer in self.layers:
            hidden = layer(hidden, bias)
        return hidden, torch.tanh(self.pool(hidden[:, 0]))


class Layer(nn.Module):
    """Self-attention and a feed-forward net, each with its residual and norm after it, as BERT has them."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.wide, self.narrow = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.after_attention, self.after_feed = nn.LayerNorm(HIDDEN, eps=1e-12), nn.LayerNorm(HIDDEN, eps=1e-12)

    def heads(self, hidden):
        return hidden.view(hidden.shape[0], hidden.shape[1], HEADS, HIDDEN // HEADS).transpose(1, 2)

    def forward(self, hidden, bias):
        query, key, value = self.heads(self.query(hidden)), self.heads(self.key(hidden)), self.heads(self.value(hidden))
        scores = query @ key.transpose(-1, -2) / (HIDDEN // HEADS) ** 0.5 + bias
        mixed = (torch.softmax(scores, dim=-1) @ value).transpose(1, 2).reshape(hidden.shape)
        hidden = self.after_attention(hidden + self.out(mixed))
        return self.after_feed(hidden + self.narrow(nn.functional.gelu(self.wide(hidden))))


class Recurrent(nn.Module):
    """Two layers of a recurrent cell, both directions, and a linear answer from the last step."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell(FEATURES, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(32, 4)

    def forward(self, series):
        steps, _ = self.cell(series)
        return steps, self.out(steps[:, -1])


def export(name, net, inputs, input_names, output_names):
    open_axes = {one: {0: "batch", 1: "length"} for one in input_names + output_names[:1]}
    open_axes |= {output_names[1]: {0: "batch"}}
    torch.onnx.export(
        net.eval(), inputs, OUT / f"{name}.onnx", opset_version=16, input_names=input_names,
        output_names=output_names, dynamic_axes=open_axes,
    )  # fmt: skip


def main():
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(SEED)
    words = torch.randint(0, WORDS, (2, 7))
    export("torch_encoder", Encoder(), (words, torch.ones_like(words)), ["input_ids", "attention_mask"], ["hidden", "pooled"])
    for name, cell in (("torch_lstm", nn.LSTM), ("torch_gru", nn.GRU)):
        export(name, Recurrent(cell), (torch.randn(2, 7, FEATURES),), ["series"], ["steps", "answer"])


if __name__ == "__main__":
    main()
