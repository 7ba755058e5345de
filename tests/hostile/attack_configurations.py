"""Which attacks load models with configurations of their own?

Each process has models of its own names, which `unload_left` unloads once it is killed. They are the identity backend's, or ensembles of that.
"""

import contextlib
import json
import os

from attack_connections import HELD_S
from attack_table import DEFENCE, attack, close_after, crowd, post
from holding import get_unread, send_unread

PREFIX = "attack_model_"
MIB = 1 << 20
STEPS, LEVELS = 16, 3
IDENTITY = {
    "backend": "identity",
    "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "B", "data_type": "TYPE_FP32", "dims": [-1]}],
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}
SMALL = {"inputs": [{"name": "A", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}
UNREAD = 8
ENDLESS = 32


def own(at: object, process: int | None = None) -> str:
    return f"{PREFIX}{process or os.getpid()}_{at}"


def load(server, at: object, config: dict) -> bool:
    """Loads a model of this process."""
    return post(server, f"/v2/repository/models/{own(at)}/load", sent(config).decode()).status == 200


def sent(config: dict) -> bytes:
    """The body of a load. An empty file makes it a model that no repository has."""
    return json.dumps({"parameters": {"config": json.dumps(config), "file:1/none": ""}}).encode()


def unload(server, at: object) -> None:
    post(server, f"/v2/repository/models/{own(at)}/unload", {})


def unload_left(server, process: int) -> None:
    """Unloads what a killed process of an attack may have left loaded, ensembles before their parts. No index lists these models."""
    for at in [*(f"level{level}" for level in reversed(range(LEVELS))), *range(ENDLESS)]:
        with contextlib.suppress(*DEFENCE):
            post(server, f"/v2/repository/models/{own(at, process)}/unload", {})


def warmup(count: int, elements: int, **more) -> dict:
    given = {"data_type": "TYPE_FP32", "dims": [elements], "random_data": True}
    return {"model_warmup": [{"name": "w", "batch_size": 1, "count": count, "inputs": {"A": given}}]} | more


def delay(ms: int) -> dict:
    return {"parameters": {"execute_delay_ms": {"string_value": str(ms)}}}


@attack
def loads_with_large_warmups(server):
    """eight loads at once whose warmups have tensors of 16 MiB, of random numbers"""

    def act(at: int) -> None:
        load(server, at, IDENTITY | warmup(4, 4 * MIB))
        unload(server, at)

    crowd(8, act)


@attack
def loads_that_never_end(server):
    """loads whose warmups would take hours, more than there are places for loads; some are unloaded, and then their clients leave"""
    body = sent(IDENTITY | warmup(50_000, 1) | delay(100))
    fields = f"HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    made = []
    with contextlib.suppress(*DEFENCE):
        made += [send_unread(server, f"POST /v2/repository/models/{own(at)}/load {fields}".encode(), body) for at in range(ENDLESS)]
    crowd(ENDLESS // 4, lambda at: unload(server, at))
    close_after(HELD_S, made)


@attack
def loads_with_enormous_numbers(server):
    """loads that are refused: of endless warmups, of states of terabytes, of more buckets and tags than may be"""
    states = [{"input_name": "S", "output_name": "T", "data_type": "TYPE_FP32", "dims": [-1, 1 << 40]}]
    buckets = {"metric_identifier": {"family": "nv_inference_first_response_histogram_ms"}, "histogram_options": {"buckets": list(range(257))}}
    faulty = [
        warmup((1 << 32) - 1, 1),
        warmup(1, 1 << 40),
        {"sequence_batching": {"state": states}},
        {"model_metrics": {"metric_control": [buckets]}},
        {"metric_tags": {f"t{at}": "x" * 1000 for at in range(1000)}},
        {"instance_group": [{"count": 1 << 30, "kind": "KIND_CPU"}]},
        {"version_policy": {"specific": {"versions": list(range(1, 20_000))}}},
    ]
    crowd(len(faulty), lambda at: load(server, at, IDENTITY | faulty[at]))
    for at in range(len(faulty)):
        with contextlib.suppress(*DEFENCE):
            unload(server, at)


@attack
def ensembles_of_ensembles(server):
    """ensembles of sixteen steps, each of which is one of sixteen steps, asked through all of their levels and loaded again meanwhile"""
    tensor = lambda at: {0: "A", STEPS: "B"}.get(at, f"t{at}")  # noqa: E731

    def ensemble(below: str) -> dict:
        steps = [
            {"model_name": below, "model_version": -1, "input_map": {"A": tensor(at)}, "output_map": {"B": tensor(at + 1)}} for at in range(STEPS)
        ]
        return {
            "platform": "ensemble",
            "input": IDENTITY["input"],
            "output": IDENTITY["output"],
            "ensemble_scheduling": {"step": steps},
        }

    def act(at: int) -> None:
        if at % 8 == 0:
            load(server, f"level{at % LEVELS}", ensemble(own(f"level{at % LEVELS - 1}")) if at % LEVELS else IDENTITY)
        else:
            post(server, f"/v2/models/{own(f'level{LEVELS - 1}')}/infer", SMALL)

    load(server, "level0", IDENTITY)
    for level in range(1, LEVELS):
        load(server, f"level{level}", ensemble(own(f"level{level - 1}")))
    crowd(24, act)
    for level in reversed(range(LEVELS)):
        unload(server, f"level{level}")


@attack
def histograms_and_tags(server):
    """models with as many buckets and tags as may be, whose pages of metrics nobody reads"""
    family = {"family": "nv_inference_first_response_histogram_ms"}
    control = [{"metric_identifier": family, "histogram_options": {"buckets": list(range(256))}}]
    tags = {f"t{at}": "x" * 20 for at in range(64)}
    config = IDENTITY | {"model_metrics": {"metric_control": control}, "metric_tags": tags}

    def act(at: int) -> None:
        load(server, at, config)
        post(server, f"/v2/models/{own(at)}/infer", SMALL)

    class Metrics:
        http = server.metrics

    crowd(16, act)
    unread = []
    with contextlib.suppress(*DEFENCE):
        unread += [get_unread(Metrics, "/metrics") for _ in range(UNREAD)]
    close_after(0, unread)
    crowd(16, lambda at: unload(server, at))
