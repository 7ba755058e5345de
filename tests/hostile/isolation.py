"""Which server with isolated models may the hostile tests hurt?"""

import contextlib
import pathlib

import graphs
import make_models
from clients import Given
from server_setup import LEASE_BYTES_MAX, SESSION_BYTES_MAX, onnxruntime_library
from onnx import helper
from pythons import PythonWitness, everybody, processes_of
from test_copies import SIDE, late
from witness import any_client, lent, maps_with, warm_up

# A second or two of work.
LATE_STEPS = 8

# The rest is completed from the graph, in a process of its own as well.
ISOLATED = """\
backend: "onnxruntime"
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "isolated" value { string_value: "true" } }
"""


def divide():
    """INPUT0 / INPUT1, of whole numbers. By zero there is no result, nor of the smallest number by -1, which the processor reports as a fault."""
    given = [graphs.value(name, "INT32", ["n"]) for name in ("INPUT0", "INPUT1")]
    nodes = [helper.make_node("Div", ["INPUT0", "INPUT1"], ["OUTPUT0"])]
    return graphs.finish("divide", nodes, given, [graphs.value("OUTPUT0", "INT32", ["n"])])


GRAPHS = {
    "iso_identity": graphs.identity("FP32", ["n"]),
    "iso_strings": graphs.identity("BYTES", ["n"]),
    "iso_sums": graphs.add_sub("FP32", ["batch", "n"]),
    "iso_late": late(LATE_STEPS),
    "iso_divide": divide(),
    "iso_witness": graphs.identity("FP32", ["n"]),
}


class IsolatedWitness(PythonWitness):
    """Asks an isolated model of its own."""

    model = "iso_witness"


def all_witnesses(server):
    return everybody(server, IsolatedWitness)


@contextlib.contextmanager
def serving_isolated(launcher, name: str, socket: pathlib.Path, models=tuple(GRAPHS)):
    """A server with those models, beside some that are not isolated."""
    repository = launcher.copy_of(name, "identity_fp32", "identity_bytes", "simple")
    for model in models:
        make_models.put(repository, model, GRAPHS[model], ISOLATED)
    make_models.put(repository, "sums", GRAPHS["iso_sums"], 'backend: "onnxruntime"\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n')
    flags = [
        f"--onnxruntime-library={onnxruntime_library()}", f"--session-socket={socket}",
        f"--lease-max-bytes={LEASE_BYTES_MAX}", f"--session-max-bytes={SESSION_BYTES_MAX}",
        "--backend-config=onnxruntime,default-max-batch-size=0", "--model-control-mode=explicit", "--load-model=*",
    ]  # fmt: skip
    with launcher.running(name, *flags, repository=repository) as found:
        found.session = socket
        with all_witnesses(found) as watching:
            warm_up(watching)
        yield found


# What to ask a model for its process to be found: names of inputs, their datatype and shape, of one element each.
SMALL = {
    "iso_strings": (["INPUT0"], "BYTES", [1]),
    "iso_sums": (["INPUT0", "INPUT1"], "FP32", [1, 1]),
    "iso_divide": (["INPUT0", "INPUT1"], "INT32", [1]),
}


def process_of(server, model: str) -> int:
    """The process that has a region mapped which only this model was given."""
    with any_client("http", server) as client, lent(client, 4 * SIDE * SIDE, b"\x01\0\0\0a\0\0\0") as made:
        names, datatype, shape = SMALL.get(model, (["INPUT0"], "FP32", [1]))
        size = 5 if datatype == "BYTES" else 4
        given = [Given(name, datatype, shape, region=(made.name, size, 0)) for name in names]
        if model == "iso_late":
            given = [
                Given("EARLY", "FP32", [SIDE, SIDE], region=(made.name, 4 * SIDE * SIDE, 0)),
                Given("LATE", "FP32", [1], region=(made.name, 4, 0)),
            ]
        client.infer(model, given)
        found = [pid for pid in processes_of(server.pid) if maps_with(pid, made.path.name)]
    assert len(found) == 1, found
    return found[0]
