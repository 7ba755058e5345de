"""What do the tests of control mode `poll` share that expect changes to be seen at once?"""

import time

import numpy as np
from clients import fp32
from python_setup import PATIENT

# No look at an interval happens within a test.
FLAGS = ["--model-control-mode=poll", "--repository-poll-secs=3600", PATIENT]
WAIT_S = 60

CONFIG = """\
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
"""


def module(factor: int) -> str:
    """A module. Each has another length, because Python takes a module of the same length and second for the same."""
    return f"FACTOR = {factor}{' ' * factor}\n"


def answer(client, name: str) -> float:
    """What the model makes of 1."""
    return np.frombuffer(client.infer(name, [fp32("IN", [1])]).outputs["OUT"].raw, np.float32)[0]


def waits_for(found, wanted) -> None:
    deadline = time.monotonic() + WAIT_S
    while (last := found()) != wanted:
        assert time.monotonic() < deadline, last
        time.sleep(0.02)
