"""How do tests start a server with batching models, fill its queues, and see which batches ran?"""

import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import time
import uuid

import catalogue
import graphs
import onnx
import triton
from clients import fp32, http_call
from meanwhile import Delay
from python_setup import Gates

DELAY_MS = 500
ORACLE_COMES_MS = 25


def batching(name: str, settings: str = "", *, extra: str = "", **more) -> catalogue.Model:
    """An identity model that takes a while for each batch, with these settings of the dynamic batcher."""
    text = f"dynamic_batching {{ {settings} }}\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]\n{extra}"
    more = {"max_batch": 8, "delay_ms": DELAY_MS} | more
    inputs = more.pop("inputs", (("FP32", (-1,)),))
    return catalogue.identity(name, *inputs, extra=text, **more)


def put(launcher, repository: pathlib.Path, model: catalogue.Model) -> None:
    folder = repository / model.name
    if launcher.oracle:
        triton.put(folder, model)
        return
    (folder / "1").mkdir(parents=True)
    parameters = {"execute_delay_ms": str(model.delay_ms)} if model.delay_ms else {}
    (folder / "config.pbtxt").write_text(catalogue.config_text(model, 'backend: "identity"', parameters))


def put_sums(repository: pathlib.Path, name: str, settings: str) -> None:
    """An ONNX model of two inputs, 16 numbers in each row, with these settings of the dynamic batcher."""
    (repository / name / "1").mkdir(parents=True)
    model = dataclasses.replace(
        catalogue.Model(name, "onnx", *catalogue.pair("INT32", (16,)), max_batch=8),
        extra=f"dynamic_batching {{ {settings} }}\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]\n",
    )
    (repository / name / "config.pbtxt").write_text(catalogue.config_text(model, 'platform: "onnxruntime_onnx"'))
    onnx.save(graphs.add_sub("INT32", ["batch", 16]), repository / name / "1" / "model.onnx")


def put_ragged(repository: pathlib.Path, name: str) -> None:
    """An ONNX model of ragged numbers: Y is X plus the number of requests in the batch, scattered by the shape of X."""
    helper = onnx.helper
    nodes = [
        helper.make_node("Shape", ["ENDS"], ["requests"]),
        helper.make_node("Cast", ["requests"], ["count"], to=onnx.TensorProto.INT32),
        helper.make_node("Add", ["X", "count"], ["Y"]),
    ]
    inputs = [graphs.value("X", "INT32", ["n"]), graphs.value("ENDS", "INT32", ["k"])]
    (repository / name / "1").mkdir(parents=True)
    onnx.save(graphs.finish(name, nodes, inputs, [graphs.value("Y", "INT32", ["n"])]), repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text(f"""\
name: "{name}"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ {{ name: "X" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }} ]
batch_input [
  {{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ENDS" data_type: TYPE_INT32 source_input: "X" }}
]
batch_output [ {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "Y" source_input: "X" }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ }}
""")


# Each request waits at the gate that its number names.
GATED = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        for value in values:
            pass_gate(int(value.flat[0]))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)]) for value in values]
"""


def put_gated(repository: pathlib.Path, name: str, gates: Gates, scheduling: str) -> None:
    """A Python model with two instances that runs requests for as long as the test wants."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(gates.code + GATED)
    (repository / name / "config.pbtxt").write_text(f"""\
backend: "python"
max_batch_size: 1
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
instance_group [ {{ count: 2 kind: KIND_CPU }} ]
{scheduling}
""")


def check_third_overtakes_second(gates: Gates, infer, overtakes: bool) -> None:
    """Of two instances the first is free again while the second still runs, so the third request's run ends before the second's."""
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        try:
            futures = []
            for number in range(2):
                futures.append(pool.submit(infer, number))
                gates.wait_for(number)
            gates.open(0)
            futures[0].result()
            gates.open(2)
            futures.append(pool.submit(infer, 2))
            gates.wait_for(2)
            # Where it must not overtake, this gives a wrong answer some time to come.
            assert bool(concurrent.futures.wait(futures[2:], timeout=60 if overtakes else 0.5).done) == overtakes
        finally:
            for number in range(3):
                gates.open(number)
        for future in futures:
            future.result()


@contextlib.contextmanager
def serving(launcher, name: str, *models: catalogue.Model, flags=(), sums=(), ragged=()):
    repository = launcher.copy_of(name)
    for model in models:
        put(launcher, repository, model)
    for one, settings in sums:
        put_sums(repository, one, settings)
    for one in ragged:
        put_ragged(repository, one)
    with launcher.running(name, *flags, repository=repository) as found:
        yield found


# ---------------------------------------------------------------------------------------------- what ran


def batches(client, model: str) -> dict[int, int]:
    """How many batches of each size ran."""
    found = client.statistics(model)[0]["batch_stats"]
    return {one["batch_size"]: one["compute_infer"]["count"] for one in found}


@contextlib.contextmanager
def runs(client, model: str, **wanted: int):
    """What the block does must run these batches: `_5=1` is one of five rows. Triton counts a moment after the reply."""
    before = batches(client, model)
    yield
    wanted = {int(size[1:]): count for size, count in wanted.items()}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and sum(batches(client, model).values()) < sum(before.values()) + sum(wanted.values()):
        time.sleep(0.02)
    after = batches(client, model)
    moved = {size: count - before.get(size, 0) for size, count in after.items()}
    assert {size: count for size, count in moved.items() if count} == wanted


def metric(server, name: str) -> int:
    """The value of the line of the metrics that begins so; 0 where there is none."""
    for line in http_call(server.metrics, "GET", "/metrics").body.decode().splitlines():
        if line.startswith(name):
            return int(float(line.split()[-1]))
    return 0


def pending(server, model: str) -> int:
    return metric(server, f'nv_inference_pending_request_count{{model="{model}",version="1"}}')


# ---------------------------------------------------------------------------------------------- in which order


def tracing(folder: pathlib.Path) -> list[str]:
    """Flags of a server that notes the times of each request there, in a file of its own."""
    return [f"--trace-config=triton,file={folder / 'trace.json'}", "--trace-config=triton,log-frequency=1",
            "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]  # fmt: skip


def begun_ns(folder: pathlib.Path) -> dict[str, int]:
    """When the server began the run of each request that it has noted, by the request's id."""
    found = {}
    for path in folder.glob("trace.json*"):
        text = path.read_text()
        # Another one is being written.
        notes = json.loads(text) if text.endswith("]") else []
        ids = [note["request_id"] for note in notes if "request_id" in note]
        times = {one["name"]: one["ns"] for note in notes for one in note.get("timestamps", [])}
        if ids and "COMPUTE_START" in times:
            found[ids[0]] = times["COMPUTE_START"]
    return found


# ---------------------------------------------------------------------------------------------- what waits


class Meanwhile:
    """Keeps a model with one instance busy, and lets requests come in a known order until its delay is over."""

    def __init__(self, server, client, model: str):
        self.server, self.client, self.model = server, client, model
        self.pool = concurrent.futures.ThreadPoolExecutor(32)
        self.name = uuid.uuid4().hex
        self.running: list = []
        self.waiting = 0

    def __enter__(self):
        self.delay = Delay(DELAY_MS)
        self.busy = self.pool.submit(self.client.infer, self.model, [fp32("INPUT0", [[0]])])
        try:
            if self.server.oracle:
                self.passes(100)
            else:
                self.delay.wait_for_requests(self.server, self.model)
        except BaseException:
            self.wait_for_all()
            raise
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.delay.must_last()
        finally:
            self.wait_for_all()

    def wait_for_all(self) -> None:
        """Also where it was too late: what one try leaves at the model would be taken for requests of the next."""
        concurrent.futures.wait([self.busy, *self.running])
        self.pool.shutdown()

    def comes(self, *inputs, waits: bool = True, **more):
        """A request comes and, if it `waits`, is in the queue when this returns. 2.51 does not say so: it gets some time."""
        more = {"id": f"{self.name}_{len(self.running)}"} | more
        future = self.pool.submit(self.client.infer, self.model, list(inputs), **more)
        self.running.append(future)
        if waits:
            self.waiting += 1
            if self.server.oracle:
                self.passes(ORACLE_COMES_MS)
            else:
                self.delay.until(lambda: pending(self.server, self.model) >= self.waiting)
        return future

    def order(self, traces: pathlib.Path) -> list[int]:
        """In which order they ran, by the server's clock: a test that is held up sees their answers in any order."""
        ids = [f"{self.name}_{number}" for number in range(len(self.running))]
        deadline = time.monotonic() + 60
        while not (begun := begun_ns(traces)).keys() >= set(ids):
            assert time.monotonic() < deadline, f"{len(begun)} traces, but not of all of {ids}"
            time.sleep(0.05)
        return sorted(range(len(ids)), key=lambda number: begun[ids[number]])

    def passes(self, ms: float) -> None:
        time.sleep(ms / 1000)
        self.delay.must_last()
