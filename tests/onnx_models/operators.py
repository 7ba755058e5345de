#!/usr/bin/env python3
"""Which ONNX operators does a server's ONNX engine compute rightly?

Every node test of the `onnx` package is loaded through the repository API (a `config` and a `file:` parameter), asked
once per data set over gRPC, compared with the expected outputs, and unloaded.

    # a server in explicit mode, over any (empty) repository
    python tests/onnx_models/operators.py --url 127.0.0.1:8001 --engine embedded --out target/operators/embedded.json
    # the table of docs/operators.md from all results so far
    python tests/onnx_models/operators.py --write docs/operators.md target/operators/*.json

The verdict on a case is one of: pass, refused (the model did not load), failed (the request did), wrong (the values),
died (no server any more), not servable (the case has a type that no Triton tensor has).
"""

import argparse
import collections
import contextlib
import json
import pathlib
import sys
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "conformance"), str(HERE.parent / "models")]

import catalogue  # noqa: E402
import grpc  # noqa: E402
import numpy as np  # noqa: E402
from clients import NUMPY, Given, GrpcClient, Refused, grpc_channel, text  # noqa: E402
from graphs import ONNX_TYPES  # noqa: E402
from onnx import TensorProto, numpy_helper  # noqa: E402

WIRE_TYPES = {number: name for name, number in ONNX_TYPES.items()}
BEGIN, END = "<!-- operators:begin -->", "<!-- operators:end -->"
REASON_MAX = 200
# The package writes its newest file format; what is asked here is the operator.
IR_VERSION_MAX = 10


class NotServable(Exception):
    """The case needs what the protocol does not have."""


def wire_tensor(info) -> tuple[str, list[int]]:
    """Datatype and dims of a graph's input or output, open dims as -1."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise NotServable(f"{kind} in the signature")
    tensor = info.type.tensor_type
    if tensor.elem_type not in WIRE_TYPES:
        raise NotServable(f"element type {TensorProto.DataType.Name(tensor.elem_type)}")
    if not tensor.HasField("shape"):
        raise NotServable("an output of unknown rank")
    return WIRE_TYPES[tensor.elem_type], [
        dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim
    ]


def config_of(name: str, graph, through: str) -> str:
    """Explicit inputs and outputs where there are no scalars; scalars are left to auto-completion."""
    initialized = {one.name for one in graph.initializer}
    inputs = [one for one in graph.input if one.name not in initialized]
    signature = [[(one.name, *wire_tensor(one)) for one in side] for side in (inputs, graph.output)]
    config = {"name": name, "max_batch_size": 0}
    config |= {"backend": "python"} if through == "python" else {"platform": "onnxruntime_onnx"}
    scalars = any(not dims for side in signature for _, _, dims in side)
    empty = any(dim == 0 for side in signature for _, _, dims in side for dim in dims)
    if through == "python" or not (scalars or empty):
        for key, side in zip(("input", "output"), signature):
            config[key] = [
                {"name": name, "data_type": catalogue.DATATYPES[datatype], "dims": [str(dim or -1) for dim in dims] or ["1"]}
                for name, datatype, dims in side
            ]
    return json.dumps(config)


def array_of(value) -> np.ndarray:
    """A test's value as an array; some are TensorProtos, some numpy scalars."""
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    if value is None or isinstance(value, (list, tuple, dict)):
        raise NotServable("a sequence or an optional value")
    return np.asarray(value)


def given(name: str, datatype: str, value) -> Given:
    array = array_of(value)
    # A scalar has no shape on the wire but [1].
    shape = list(array.shape) or [1]
    if datatype == "BYTES":
        flat = [one.encode() if isinstance(one, str) else bytes(one) for one in array.reshape(-1).tolist()]
        return text(name, flat, shape)
    return Given(name, datatype, shape, np.ascontiguousarray(array, NUMPY[datatype]).tobytes())


def compare(made, datatype: str, value, rtol: float, atol: float) -> str | None:
    """What is wrong with an output, or None."""
    wanted = array_of(value)
    if made.datatype != datatype:
        return f"datatype {made.datatype}, not {datatype}"
    if made.shape != (list(wanted.shape) or [1]) and not (wanted.shape == () and made.shape == []):
        return f"shape {made.shape}, not {list(wanted.shape)}"
    if datatype == "BYTES":
        flat = [one.encode() if isinstance(one, str) else bytes(one) for one in wanted.reshape(-1).tolist()]
        return None if made.raw == text("", flat).raw else "other strings"
    found = np.frombuffer(made.raw, NUMPY[datatype]).reshape(wanted.shape)
    if datatype.startswith(("FP", "BF")):
        pair = found.astype(np.float64), wanted.astype(np.float64)
        return None if np.allclose(*pair, rtol=rtol, atol=atol, equal_nan=True) else "other values"
    return None if np.array_equal(found, wanted) else "other values"


def judge(client: GrpcClient, case, through: str) -> tuple[str, str]:
    """The verdict on one case, and its reason."""
    graph = case.model.graph
    # A name of its own: 2.51 does not reload a model whose files alone differ.
    name = f"operator_{case.name}"
    case.model.ir_version = min(case.model.ir_version, IR_VERSION_MAX)
    try:
        files = {"config": config_of(name, graph, through), "file:1/model.onnx": case.model.SerializeToString()}
        requests = []
        for inputs, outputs in case.data_sets:
            infos = [one for one in graph.input if one.name not in {item.name for item in graph.initializer}]
            tensors = [given(info.name, wire_tensor(info)[0], value) for info, value in zip(infos, inputs)]
            wanted = [(info.name, wire_tensor(info)[0], value) for info, value in zip(graph.output, outputs)]
            for _, _, value in wanted:
                array_of(value)
            requests.append((tensors, wanted))
    except NotServable as reason:
        return "not servable", str(reason)
    if through == "python":
        from triton import GENERIC_MODEL

        files["file:1/model.py"] = GENERIC_MODEL.encode()
    try:
        client.load(name, files)
    except Refused as refusal:
        return verdict_of(refusal, "refused")
    try:
        for tensors, wanted in requests:
            reply = client.infer(name, tensors)
            for output, datatype, value in wanted:
                if output not in reply.outputs:
                    return "wrong", f"no output {output}"
                wrong = compare(reply.outputs[output], datatype, value, case.rtol, case.atol)
                if wrong:
                    return "wrong", wrong
    except Refused as refusal:
        return verdict_of(refusal, "failed")
    finally:
        with contextlib.suppress(Refused):
            client.unload(name)
    return "pass", ""


def verdict_of(refusal: Refused, verdict: str) -> tuple[str, str]:
    dead = refusal.status == grpc.StatusCode.UNAVAILABLE and "onnect" in refusal.text
    reason = " ".join(refusal.text.split()).partition("is at UNAVAILABLE state: ")
    return ("died" if dead else verdict), (reason[2] or reason[0])[:REASON_MAX]


def operator_of(case) -> str:
    """The operator a node test is about: expanded forms keep the name of what was expanded."""
    nodes = case.model.graph.node
    domain = f"{nodes[0].domain}." if nodes[0].domain else ""
    return f"{domain}{nodes[0].op_type}" if len(nodes) == 1 else f"{domain}{nodes[-1].op_type}"


def run(url: str, through: str, engine: str, only: str, expanded: bool) -> dict:
    """Judges every case and returns what `--out` keeps."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in collect_testcases(None) if only in case.name]
    found = {}
    with grpc_channel(url) as channel:
        client = GrpcClient(channel)
        for case in cases:
            if "_expanded" in case.name and not expanded:
                continue
            verdict, reason = judge(client, case, through)
            found[case.name] = {"operator": operator_of(case), "verdict": verdict, "reason": reason}
            if verdict == "died":
                print(f"the server died on {case.name}", file=sys.stderr)
                break
    return {"engine": engine, "cases": found}


def table(results: list[dict]) -> str:
    """The Markdown section: one row for each operator, one column for each engine."""
    operators = sorted({case["operator"] for one in results for case in one["cases"].values()})
    lines = []
    for one in results:
        counts = collections.Counter(case["verdict"] for case in one["cases"].values())
        servable = sum(counts.values()) - counts["not servable"]
        rest = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common() if verdict != "pass")
        lines.append(f"* {one['engine']}: {counts['pass']} of {servable} servable node tests pass ({rest}).")
    lines += ["", "| operator | " + " | ".join(one["engine"] for one in results) + " |"]
    lines.append("|---|" + "---|" * len(results))
    for operator in operators:
        cells = []
        for one in results:
            mine = [case for case in one["cases"].values() if case["operator"] == operator]
            counts = collections.Counter(case["verdict"] for case in mine)
            servable = len(mine) - counts["not servable"]
            rest = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common() if verdict not in ("pass", "not servable"))
            cells.append(f"{counts['pass']}/{servable}" + (f" ({rest})" if rest else "") if servable else "–")
        if any(cell != "–" for cell in cells):
            lines.append(f"| {operator} | " + " | ".join(cells) + " |")
    for one in results:
        wrong = sorted(name.removeprefix("test_") for name, case in one["cases"].items() if case["verdict"] == "wrong")
        if wrong:
            lines += ["", f"Wrong values with {one['engine']}: {', '.join(wrong)}."]
    return "\n".join(lines) + "\n"


def write(document: pathlib.Path, results: list[dict]) -> None:
    """Replaces the part of the document between the two marks."""
    before, _, rest = document.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    document.write_text(f"{before}{BEGIN}\n{table(results)}{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description="count the ONNX operators that a server computes rightly")
    parser.add_argument("--url", help="host:port of the gRPC port of a server in explicit mode")
    parser.add_argument("--engine", default="engine", help="the column's heading")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--expanded", action="store_true", help="also the cases of functions written out")
    parser.add_argument("--through", choices=["onnx", "python"], default="onnx",
                        help="python: send a model.py that runs the graph, for servers without an ONNX backend")  # fmt: skip
    parser.add_argument("--out", type=pathlib.Path, help="where the verdicts go, as JSON")
    parser.add_argument("--write", type=pathlib.Path, help="the document whose table is to be renewed")
    parser.add_argument("results", nargs="*", type=pathlib.Path, help="with --write: verdicts of earlier runs")
    args = parser.parse_args()
    if args.write:
        write(args.write, [json.loads(path.read_text()) for path in args.results])
        return
    if not args.url:
        parser.error("--url or --write is needed")
    found = run(args.url, args.through, args.engine, args.only, args.expanded)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1))
    print(collections.Counter(case["verdict"] for case in found["cases"].values()))


if __name__ == "__main__":
    main()
