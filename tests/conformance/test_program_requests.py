"""Does a program's request that says less of itself, or more, than usual find the same here as in Triton's library?

Raw inputs, data for instances of one host policy, labels of classes, and traces whose points functions of the program are told.
"""

import collections
import re
import subprocess

import pytest
import triton
from compiled_setup import compiled, put
from test_in_process import FLAGS, facts, own_library
from servers import ROOT, nerite_binary

PROGRAM = ROOT / "tests" / "programs" / "requests.c"
TENSOR = '{ name: "%s" data_type: TYPE_FP32 dims: [ -1 ] }'
STEP = '{ model_name: "%s" model_version: -1 input_map { key: "IN" value: "%s" } output_map { key: "OUT" value: "%s" } }'
POINTS = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END"]


def put_with(repository, name: str, old: str, new: str, **more) -> None:
    """A model whose tensors differ from the usual ones."""
    path = put(repository, name, **more) / "config.pbtxt"
    path.write_text(path.read_text().replace(old, new))


class Program:
    """The program with one library, and what it serves."""

    def __init__(self, scratch, is_oracle: bool) -> None:
        self.backends, self.repository, self.path = scratch / "backends", scratch / "models", scratch / "requests"
        if is_oracle:
            self.environment = triton.environment()
            library = next((triton.site_packages() / "nvidia_pytriton.libs").glob("libtritonserver-*.so"))
        else:
            library = own_library()
            self.environment = {"NERITE_PROGRAM": str(nerite_binary())}
        link = [f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
        subprocess.run(["cc", *FLAGS, str(PROGRAM), "-o", str(self.path), *link, "-lpthread"], check=True)
        compiled(self.backends / "sample" / "libtriton_sample.so")
        repository = self.repository
        for name in ("free", "plainly"):
            put(repository, name)
        put(repository, "batched", more="max_batch_size: 8")
        put_with(repository, "fixed", "[ -1 ]", "[ 2, 2 ]")
        put_with(repository, "two_free", "[ -1 ]", "[ -1, -1 ]")
        put_with(repository, "text", "[ -1 ]", "[ 1 ]", datatype="STRING")
        put(repository, "texts", datatype="STRING")
        put(repository, "add", "add_sub", pairs=2)
        put(repository, "on_cpu", "by_policy")
        put(repository, "on_p", "by_policy", more='instance_group { kind: KIND_CPU host_policy: "p" }')
        put(repository, "built_in", backend="identity" if not is_oracle else "sample")
        put_with(repository, "labelled", '"OUT" data_type', '"OUT" label_filename: "labels.txt" data_type')
        (repository / "labelled" / "labels.txt").write_text("zero\none\ntwo\n")
        put(repository, "told", "tell")
        put(repository, "fail", "fail")
        put(repository, "reports", "reports")
        (repository / "both" / "1").mkdir(parents=True)
        steps = ", ".join([STEP % ("free", "IN", "middle"), STEP % ("plainly", "middle", "OUT")])
        config = f'platform: "ensemble"\ninput [{TENSOR % "IN"}]\noutput [{TENSOR % "OUT"}]\nensemble_scheduling {{ step [{steps}] }}\n'
        (repository / "both" / "config.pbtxt").write_text(config)

    def run(self, what: str) -> list[str]:
        command = [str(self.path), what, str(self.repository), str(self.backends)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=self.environment)
        assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def program(request, tmp_path_factory) -> Program:
    return Program(tmp_path_factory.mktemp("program_requests"), request.config.getoption("--oracle"))


def test_name_datatype_and_shape_of_a_raw_input_are_those_of_the_model(program):
    found = facts(program.run("raw"))
    refused = "Invalid argument: [request id: 7] "
    expected = {
        "free": "OUT FP32[4]  1 2 3 4", "batched": "OUT FP32[1,4]  1 2 3 4", "fixed": "OUT FP32[2,2]  1 2 3 4",
        "text": r"OUT BYTES[1] \5\0\0\0hello",
        "texts": refused + "For BYTE datatype raw input 'IN', the model must have input shape [1]",
        "two free": refused + "The shape of the raw input 'IN' can not be deduced because there are more than one variable-sized dimension",
        "two inputs": refused + "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'add' model configuration",
        "raw in parts": refused + "Raw request must only have 1 input (found 2) to be deduced but got 1 inputs in 'free' model configuration",
    }  # fmt: skip
    for what, text in expected.items():
        assert found[what] == ["well", text], what
    assert found["another raw"] == [refused + "raw input 'more' can't be added to request with other inputs"]
    assert found["raw behind another"] == [refused + "raw input 'given' can't be added to request with other inputs"]
    assert [found[what] for what in ("another", "unknown", "removed", "named after it")] == [["well"]] * 4
    # The name of a raw input is the program's in Triton, and the model's here.
    short = found["fixed short"][1].replace("'given'", "'IN'")
    assert short == refused + "input byte size mismatch for input 'IN' for model 'fixed'. Expected 16, got 12"


def test_an_instance_gets_the_data_of_its_host_policy(program):
    found = facts(program.run("policies"))
    plain, own = "OUT FP32[4]  1 2 3 4", "OUT FP32[4]  10 20 30 40"
    expected = {"plain": plain, "of cpu": own, "of another": plain, "of p": own, "of cpu for p": plain, "read plainly": plain,
                "in parts": "OUT FP32[4]  10 20 5 6", "removed": plain}  # fmt: skip
    assert {what: found[what] for what in expected} == {what: [text] for what, text in expected.items()}
    missing = "Invalid argument: [request id: 7] input byte size mismatch for input 'IN' for model 'on_cpu'. Expected 16, got 0"
    assert found["without plain"] == found["without plain of another"] == [missing]
    assert found["unknown"] == ["Invalid argument: [request id: 7] input 'NONE' does not exist in request"]


def test_a_built_in_engine_gets_the_data_of_its_host_policy(request, program):
    if request.config.getoption("--oracle"):
        pytest.skip("an engine of this server")
    found = facts(program.run("policies"))
    assert (found["built in"], found["built in of another"]) == (["OUT FP32[4]  10 20 30 40"], ["OUT FP32[4]  1 2 3 4"])


@pytest.mark.triton_differs("it gives the backend 12 bytes for a tensor of 16")
def test_data_of_a_host_policy_has_the_size_of_its_shape(program):
    text = "Invalid argument: [request id: 7] input byte size mismatch for input 'IN' and host policy 'cpu'. Expected 16, got 12"
    assert facts(program.run("policies"))["short"] == [text]


def test_classes_of_an_output_have_the_labels_of_the_model(program):
    lines = program.run("labels")
    outside = "label 0 of output 1: Invalid argument: out of bounds index 1: response has 1 outputs"
    labels = [f"label {number} of output 0: {label}" for number, label in ((0, "zero"), (2, "two"), (3, "NULL"))]
    none = [f"label {number} of output 0: NULL" for number in (0, 2, 3)]
    assert lines == ["labels: labelled", *labels, outside, "labels: free", *none, outside]


def sections(lines: list[str]) -> dict[str, list[str]]:
    """What was told of each traced request."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    name = ""
    for line in lines:
        head, _, rest = line.partition(": ")
        name = rest if head == "traced" else name
        if head != "traced":
            found[name].append(line)
    return found


def activities(model: str, parent: str = "of 4711", context: str = "ours") -> list[str]:
    return [f"activity {point}: {model} 1 '7' {parent}; {context}" for point in POINTS]


QUEUED = "tensor TENSOR_QUEUE_INPUT: free IN FP32[4] 16 bytes on CPU 0 1 2 3 4"
MADE = "tensor TENSOR_BACKEND_OUTPUT: free OUT FP32[4] 16 bytes on CPU 0 1 2 3 4"


def test_functions_are_told_of_a_request_while_it_passes_its_points(program):
    found = sections(program.run("traces"))
    released = ["released: 1"]
    assert found["times"] == found["min"] == activities("free") + released
    assert found["tensors"] == [QUEUED, MADE, *released]
    both = activities("free")
    assert sorted(found["both"]) == sorted([*both, QUEUED, MADE, *released])
    assert [line for line in found["both"] if line in both] == both
    assert found["disabled"] == released
    assert found["failed"] == activities("fail") + released


def test_the_trace_of_a_refused_request_stays_the_programs(program):
    found = sections(program.run("traces"))["refused"]
    assert "expected 2 inputs but got 1 inputs for model 'add'" in found[0]
    assert found[-2:] == ["deleted: well", "released: 0"] and len(found) == 3, found


def test_the_steps_of_an_ensemble_are_reported_with_traces_of_their_own(program):
    found = sections(program.run("traces"))["ensemble"]
    steps = [f"activity {point}: {model} 1 '7' of another; " for model in ("free", "plainly") for point in POINTS]
    whole = activities("both")
    assert found[-1] == "released: 3"
    # An ensemble computes nothing itself.
    assert sorted(found[:-1]) == sorted([*steps, *(line for line in whole if "COMPUTE" not in line)])


def test_what_a_model_reports_is_in_the_context(program):
    found = sections(program.run("traces"))["reports"]
    found = found[: found.index("released: 1")]
    (custom,) = [line for line in found if "CUSTOM_ACTIVITY" in line]
    assert custom.startswith("activity CUSTOM_ACTIVITY: reports 1 '7' of 4711")
    after = found[found.index(custom) + 1]
    assert re.search(r'; \{"\d+":"a point of its own"\}$', after), found


def test_a_trace_that_is_not_sent_is_deleted_by_its_owner(program):
    lines = program.run("traces")
    assert lines[-1] == "deleted: 0" and "child: of its parent" in lines


def test_a_request_and_its_model_tell_what_was_set(program):
    found = facts(program.run("properties"))
    expected = {
        "id": "7", "timeout": "60000000", "sequence by name": "nine", "sequence": "9", "flags": "3",
        "number of a name": "Invalid argument: given request's correlation id is not an unsigned int",
        "name of a number": "Invalid argument: given request's correlation id is not a string",
        "cancelled": "Internal: It is not possible to query cancellation status before calling TRITONSERVER_InferAsync.",
        "cancel": "Internal: It is not possible to cancel an inference request before calling TRITONSERVER_InferAsync.",
        "told": "OUT FP32[4]  1 2 3 4", "got_half": "DOUBLE 0.5", "got_seven": "INT 7",
    }  # fmt: skip
    assert {what: found[what] for what in expected} == {what: [text] for what, text in expected.items()}


@pytest.mark.triton_differs("it tells the level that the model gives the request: 0 without priority levels")
def test_a_request_tells_the_priority_that_was_set(program):
    found = facts(program.run("properties"))
    assert (found["priority"], found["large priority"]) == (["7 7"], [str(1 << 40)])
    assert found["large priority in 32 bits"][0].startswith(f"Invalid argument: the request's priority {1 << 40} does not fit in 32 bits")


def test_inputs_and_requested_outputs_are_removed_again(program):
    found = facts(program.run("changes"))
    unknown = "Invalid argument: [request id: 7] input '{}' does not exist in request"
    assert (found["unknown after that"], found["unknown"]) == ([unknown.format("IN")], [unknown.format("NONE")])
    sums, differences = "OUT FP32[4]  11 22 33 44", "OUT1 FP32[4]  -9 -18 -27 -36"
    assert (found["not requested"], found["one output"], found["all outputs"]) == (["well"], [differences], [f"{sums} {differences}"])


def test_a_program_describes_the_memory_that_it_gives(program):
    assert program.run("descriptions") == [
        "describe: OUT", "describe: OUT1", "described: OUT FP32[4]  11 22 33 44 OUT1 FP32[4]  -9 -18 -27 -36",
        "refused: Unavailable: not described on purpose",
    ]  # fmt: skip


def test_types_of_parameters_and_levels_of_traces_have_names(program):
    assert program.run("words") == ["parameters: STRING INT BOOL DOUBLE BYTES <invalid>", "levels: DISABLED MIN MAX TIMESTAMPS TENSORS"]
