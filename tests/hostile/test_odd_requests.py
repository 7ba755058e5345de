"""Does an error of one request ever fail another request of its batch?

A table of odd requests, each run in a batch of two beside an honest one. Nothing but the odd request completes the batch, so the honest one is answered
without a third request exactly if both shared the run.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import re
import resource
import shutil
from dataclasses import dataclass, field

import graphs
import numpy as np
import pytest
from batching_setup import pending
from clients import Given, Refused, RequestedOutput, open_client, text
from footprint import wait_until
from onnx import helper
from python_setup import Gates
from pythons import processes_of
from regions import registered
from servers import DEVELOPMENT_BUILD, onnxruntime_flag

CONFIG = """\
backend: "{backend}"
max_batch_size: 8
dynamic_batching {{ preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 600000000 }}
instance_group {{ kind: KIND_CPU count: 1 }}
parameters {{ key: "isolated" value {{ string_value: "{isolated}" }} }}
input {{ name: "INPUT0" data_type: TYPE_{datatype} dims: [ -1, -1 ] allow_ragged_batch: {ragged} }}
output {{ name: "OUTPUT0" data_type: TYPE_{datatype} dims: [ -1, -1 ] }}
"""
HUGE = 2**63 - 1
LONG = "x" * 100_000
REGION_BYTES = 1 << 30
# The address space that is left to a model's process, which is less than the region.
LEFT_BYTES = 64 << 20
PYTHON = """\
import json
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        request.request_id(), request.correlation_id(), request.timeout(), request.requested_output_names()
        parameters = json.loads(request.parameters())
        if "leaves" in parameters:
            pass_gate("run", request.is_cancelled)
        if "fails" in parameters:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("fails on purpose"))
        value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        wider = value if value.dtype == object else value.astype("float64").astype(value.dtype)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", wider)])
"""


def gather():
    """Takes element n of a table of eight for each n: a run with any other n fails."""
    nodes = [helper.make_node("Gather", ["table", "INPUT0"], ["OUTPUT0"])]
    tensors = [graphs.value(name, "INT32", ["b", "n", "m"]) for name in ("INPUT0", "OUTPUT0")]
    return graphs.finish("gather", nodes, tensors[:1], tensors[1:], {"table": np.arange(8, dtype=np.int32)})


# Kinds of models whose requests share a run even if their shapes differ.
UNEQUAL = ("python", "compiled", "compiled_isolated")
# All kinds of models, by the ONNX engine of the server that has them.
KINDS = {"embedded": (*UNEQUAL, "embedded", "embedded_isolated"), "library": ("library", "library_isolated")}
ALL = KINDS["embedded"] + KINDS["library"]
# Models with processes of their own.
APART = ("python", *(kind for kind in ALL if kind.endswith("_isolated")))
# The embedded engine has no strings.
TEXT = tuple(kind for kind in ALL if not kind.startswith("embedded"))
GRAPHS = tuple(kind for kind in ALL if kind.startswith(("embedded", "library")))
HONEST = {
    "FP32": Given("INPUT0", "FP32", [1, 1, 3], np.float32([1, 2, 3]).tobytes()),
    "UINT8": Given("INPUT0", "UINT8", [1, 1, 3], b"abc"),
    "BYTES": text("INPUT0", [b"a", b"", b"cd"], [1, 1, 3]),
    "INT32": Given("INPUT0", "INT32", [1, 1, 3], np.int32([1, 2, 7]).tobytes()),
}


@dataclass
class Odd:
    """A request that differs from the honest one in what it says here."""

    # A part of the error in its answer. Empty if it gets no error.
    error: str = ""
    # Whether it is refused before it waits for a run.
    is_refused: bool = False
    kinds: tuple[str, ...] = ALL
    datatype: str = "FP32"
    shape: tuple[int, ...] = (1, 1, 3)
    raw: bytes | None = None
    # The id, parameters and outputs of the request.
    more: dict = field(default_factory=dict)
    # Whether its input is in a region, and how many bytes of one its output may have.
    is_in_region: bool = False
    room: int = 0
    # Whether the client truncates that region while the request waits.
    is_truncated: bool = False
    # Whether the model's process has little address space left.
    is_tight: bool = False


def empty(datatype: str, *shape: int) -> Odd:
    return Odd("product of at most 1099511627776, got the shape", True, UNEQUAL, datatype, shape, b"")


def parameters(error: str = "", **values) -> Odd:
    return Odd(error, bool(error), more={"parameters": values})


def output(error: str, name: str = "OUTPUT0", **values) -> Odd:
    return Odd(error, bool(error), more={"outputs": [RequestedOutput(name, None, values)]})


LOST = "can no longer be used: its object"
UNMAPPED = "cannot be mapped in the model's process"
ROWS = {
    "a shape that overflows": empty("FP32", 1, 0, HUGE),
    "a shape whose bytes overflow": empty("FP32", 1, HUGE // 4, 0),
    "a shape that overflows in a batch": empty("UINT8", 1, 0, HUGE // 2),
    "a shape that overflows once it is widened": empty("UINT8", 1, 0, HUGE // 16),
    "a shape that overflows as an array of pointers": empty("BYTES", 1, 0, HUGE // 4),
    "the largest shape without elements": Odd("", False, UNEQUAL, "UINT8", (1, 1 << 40, 0), b""),
    "no elements": Odd("", False, UNEQUAL, "FP32", (1, 0, 3), b""),
    "no rows": Odd("byte size mismatch", True, ALL, "FP32", (0, 1, 3), b""),
    "no numbers": Odd(raw=np.float32([np.nan, np.inf, -np.inf]).tobytes()),
    "an index beyond the table": Odd("out of ", False, GRAPHS, "INT32", raw=np.int32([0, 8, -(2**31)]).tobytes()),
    "text that is not UTF-8": Odd("", False, TEXT, "BYTES", raw=text("", [b"\xff\xfe\0", b"\xed\xa0\x80", b""]).raw),
    "a large string": Odd("", False, TEXT, "BYTES", raw=text("", [b"\xff" * (1 << 24), b"", b""]).raw),
    "strings that end early": Odd("incomplete string data", True, TEXT, "BYTES", raw=b"\xff" * 12),
    "parameters of odd names and values": parameters(**{LONG: LONG, "\0": "\0", "": "", "int": HUGE, "nan": np.nan, "inf": -np.inf}),
    "a priority beyond all": parameters(priority=HUGE),
    "a priority that is text": parameters("invalid value type for 'priority'", priority="high"),
    "a timeout without end": parameters(timeout=HUGE),
    "a sequence of a model without": parameters(sequence_id="\0" * 128, sequence_start=True),
    "an odd id": Odd(more={"id": '\0\n"\\\U0001f600' + LONG}),
    "an unknown output": output("unexpected inference output", "NOSUCH"),
    "more classes than elements": output("", classification=2**31 - 1),
    "less than no classes": output("invalid value for 'classification'", classification=-1),
    "an output that does not fit": Odd("should be at least 12 bytes", room=4),
    "an output whose place is lost": Odd(LOST, room=12, is_truncated=True),
    "an input that is lost": Odd(LOST, is_in_region=True, is_truncated=True),
    "strings that are lost": Odd(LOST, False, TEXT, "BYTES", is_in_region=True, is_truncated=True),
    "an error that the model sets": Odd("fails on purpose", False, ("python",), more={"parameters": {"fails": True}}),
    "a region that cannot be mapped": Odd(UNMAPPED, False, APART, is_in_region=True, is_tight=True),
    "a place that cannot be mapped": Odd(UNMAPPED, False, APART, room=12, is_tight=True),
}
CASES = [pytest.param(kind, odd, id=f"{kind}-{name}") for name, odd in ROWS.items() for kind in odd.kinds]


def put(repository: pathlib.Path, kind: str, datatype: str, gates: Gates) -> None:
    folder = repository / f"{kind}_{datatype.lower()}"
    (folder / "1").mkdir(parents=True)
    backend = {"python": "python", "compiled": "rust_identity"}.get(kind.split("_")[0], "onnxruntime")
    if backend == "python":
        (folder / "1" / "model.py").write_text(gates.code + PYTHON)
    if backend == "onnxruntime":
        graph = gather() if datatype == "INT32" else graphs.identity(datatype, ["b", "n", "m"])
        (folder / "1" / "model.onnx").write_bytes(graph.SerializeToString())
    isolated, ragged = str(kind.endswith("_isolated")).lower(), str(kind in UNEQUAL).lower()
    datatype = datatype.replace("BYTES", "STRING")
    (folder / "config.pbtxt").write_text(CONFIG.format(backend=backend, isolated=isolated, datatype=datatype, ragged=ragged))


@pytest.fixture(scope="module")
def gates(launcher):
    return Gates(launcher.scratch / "odd_gates")


@pytest.fixture(scope="module")
def servers(launcher, gates):
    """The server of each kind of models: with the embedded engine, and with ONNX Runtime."""
    if launcher.oracle:
        pytest.skip("a client that truncates its region kills 2.51 (SIGBUS)")
    backends = launcher.scratch / "odd_backends"
    library = backends / "rust_identity" / "libtriton_rust_identity.so"
    library.parent.mkdir(parents=True)
    shutil.copy(DEVELOPMENT_BUILD / library.name, library)
    with contextlib.ExitStack() as running:
        found = {}
        for engine, kinds in KINDS.items():
            repository = launcher.copy_of(f"odd_{engine}")
            for kind, datatype in {(kind, odd.datatype) for odd in ROWS.values() for kind in kinds if kind in odd.kinds}:
                put(repository, kind, datatype, gates)
            flags = [onnxruntime_flag() if engine == "library" else "--onnxruntime-library=none", f"--backend-directory={backends}"]
            server = running.enter_context(launcher.running(f"odd_{engine}", *flags, repository=repository))
            found |= dict.fromkeys(kinds, server)
        yield found


@contextlib.contextmanager
def tight(processes: list[int]):
    """Leaves these processes little address space."""
    before = {}
    for pid in processes:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        used = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) << 10
        before[pid] = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (used + LEFT_BYTES, before[pid][1]))
    try:
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_AS, limits)


@contextlib.contextmanager
def sent(client, model: str, odd: Odd):
    """A function that sends the odd request, and a function for what its client does while the request waits."""
    honest = HONEST[odd.datatype]
    raw = honest.raw if odd.raw is None else odd.raw
    given, more, truncate = Given("INPUT0", odd.datatype, list(odd.shape), raw), dict(odd.more), lambda: None
    with contextlib.ExitStack() as held:
        if odd.is_in_region or odd.room:
            region = held.enter_context(registered(client, REGION_BYTES, raw))
            if odd.is_in_region:
                given.region = (region.name, len(raw), 0)
            else:
                more["outputs"] = [RequestedOutput("OUTPUT0", (region.name, odd.room, 0))]
            if odd.is_truncated:
                truncate = lambda: os.truncate(region.path, 0)  # noqa: E731
        yield lambda: client.infer(model, [given], **more), truncate


def answered_beside(server, client, model: str, odd: Odd, odd_first: bool) -> None:
    """Sends both requests, one after the other. The honest one must get its values, and the odd one what its row says."""
    honest = HONEST[odd.datatype]
    with concurrent.futures.ThreadPoolExecutor(3) as pool, sent(client, model, odd) as (send_odd, truncate):
        def send_honest():
            return client.infer(model, [honest]).outputs["OUTPUT0"].raw

        first = pool.submit(send_odd if odd_first else send_honest)
        wait_until(lambda: pending(server, model) == 1 or first.done())
        if odd_first:
            truncate()
        second = pool.submit(send_honest if odd_first else send_odd)
        found, beside = (first, second) if odd_first else (second, first)
        if odd.is_refused:
            # The honest request waits for one that completes its batch.
            concurrent.futures.wait([found])
            wait_until(lambda: pending(server, model) == 1)
            assert pool.submit(send_honest).result() == honest.raw
        assert beside.result() == honest.raw
        if not odd.error:
            found.result()
            return
        with pytest.raises(Refused) as refused:
            found.result()
        assert odd.error in refused.value.text


@pytest.mark.parametrize(("kind", "odd"), CASES)
def test_an_odd_request_fails_no_request_beside_it(servers, kind, odd):
    server, model = servers[kind], f"{kind}_{odd.datatype.lower()}"
    processes = processes_of(server.pid)
    with open_client("grpc", server) as client:
        if odd.is_tight:
            # What a process makes at its first run is there before its address space is taken.
            answered_beside(server, client, model, Odd(datatype=odd.datatype), True)
        with tight(processes) if odd.is_tight else contextlib.nullcontext():
            answered_beside(server, client, model, odd, True)
            if not odd.is_truncated:
                answered_beside(server, client, model, odd, False)
    assert server.process.poll() is None, f"the server died:\n{server.log_text()[-3000:]}"
    assert processes_of(server.pid) == processes, "a model's process ended"


def test_a_client_that_goes_away_during_the_run_fails_no_request_beside_its_own(servers, gates):
    server, model, honest = servers["python"], "python_fp32", HONEST["FP32"]
    with open_client("grpc", server) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = client.stub.ModelInfer.future(client.request(model, [honest], parameters={"leaves": True}))
        wait_until(lambda: pending(server, model) == 1)
        beside = pool.submit(client.infer, model, [honest])
        gates.wait_for("run")
        # The model goes on once it sees that.
        call.cancel()
        assert beside.result().outputs["OUTPUT0"].raw == honest.raw
