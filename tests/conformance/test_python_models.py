"""Do models written for Triton's Python backend see, and give, what they should?"""

import concurrent.futures
import json

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shm
from catalogue import DATATYPES
from clients import NUMPY, Given, RequestedOutput, differs, fp32, int32, refuses, text
from python_setup import said, strings
from regions import registered

COUNT = 24


def content(datatype: str) -> bytes:
    """24 elements, none of which is of no byte order or a number that is not equal to itself."""
    if datatype == "BYTES":
        return text("", [b"", b"a", "grün".encode(), b"\x00\xff"] * (COUNT // 4)).raw
    return np.arange(COUNT).astype(NUMPY[datatype]).tobytes()


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_comes_back_as_it_went(python_client, datatype):
    given = Given(f"INPUT_{datatype}", datatype, [COUNT], content(datatype))
    made = python_client.infer("py_types", [given], [RequestedOutput(f"OUTPUT_{datatype}")]).outputs[f"OUTPUT_{datatype}"]
    assert (made.datatype, made.shape, made.raw) == (datatype, [COUNT], content(datatype))


def test_all_datatypes_at_once(python_client):
    given = [Given(f"INPUT_{one}", one, [COUNT], content(one)) for one in DATATYPES]
    reply = python_client.infer("py_types", given)
    assert {name: made.raw for name, made in reply.outputs.items()} == {
        f"OUTPUT_{one}": content(one) for one in DATATYPES
    }


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "INT64"])
def test_empty_tensors(python_client, datatype):
    given = Given(f"INPUT_{datatype}", datatype, [0], b"")
    made = python_client.infer("py_types", [given], [RequestedOutput(f"OUTPUT_{datatype}")]).outputs[f"OUTPUT_{datatype}"]
    assert (made.datatype, made.shape, made.raw) == (datatype, [0], b"")


@pytest.mark.parametrize("count", [1, 1 << 10, 1 << 20])
def test_sizes(python_client, count):
    sent = fp32("INPUT0", np.arange(count))
    made = python_client.infer("py_identity", [sent]).outputs["OUTPUT0"]
    assert (made.shape, made.raw) == ([count], sent.raw)


def test_the_classic_example(python_client):
    left, right = np.arange(32).reshape(2, 16), np.full((2, 16), 5)
    reply = python_client.infer("py_add_sub", [int32("INPUT0", left), int32("INPUT1", right)], id="classic")
    assert reply.id == "classic" and reply.model == "py_add_sub" and reply.version == "1"
    assert reply.outputs["OUTPUT0"].raw == (left + right).astype(np.int32).tobytes()
    assert reply.outputs["OUTPUT1"].raw == (left - right).astype(np.int32).tobytes()
    assert reply.outputs["OUTPUT0"].shape == [2, 16]


def test_only_the_outputs_that_were_asked_for(python_client):
    given = [int32("INPUT0", [range(16)]), int32("INPUT1", [range(16)])]
    assert list(python_client.infer("py_add_sub", given, [RequestedOutput("OUTPUT1")]).outputs) == ["OUTPUT1"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_nvidias_client_and_its_shared_memory(python_server, protocol):
    library = {"http": http_client, "grpc": grpc_client}[protocol]
    client = library.InferenceServerClient(getattr(python_server, protocol))
    left, right = np.arange(16, dtype=np.int32).reshape(1, 16), np.full((1, 16), 3, np.int32)
    handle = shm.create_shared_memory_region("py", f"/nerite_test_py_{protocol}", 256)
    try:
        shm.set_shared_memory_region(handle, [left, right])
        client.register_system_shared_memory("py", f"/nerite_test_py_{protocol}", 256)
        inputs = [library.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
        outputs = [library.InferRequestedOutput(f"OUTPUT{n}") for n in range(2)]
        for n in range(2):
            inputs[n].set_shared_memory("py", 64, 64 * n)
            outputs[n].set_shared_memory("py", 64, 128 + 64 * n)
        for _ in range(3):
            client.infer("py_add_sub", inputs, outputs=outputs)
            assert shm.get_contents_as_numpy(handle, np.int32, [1, 16], 128).tolist() == (left + right).tolist()
            assert shm.get_contents_as_numpy(handle, np.int32, [1, 16], 192).tolist() == (left - right).tolist()
    finally:
        client.unregister_system_shared_memory("py")
        shm.destroy_shared_memory_region(handle)
        client.close()


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_through_a_region(python_client, datatype):
    raw = content(datatype)
    with registered(python_client, 4096, raw) as made:
        given = Given(f"INPUT_{datatype}", datatype, [COUNT], region=(made.name, len(raw), 0))
        for _ in range(2):
            made.write(bytes(2048), 2048)
            python_client.infer("py_types", [given], [RequestedOutput(f"OUTPUT_{datatype}", (made.name, len(raw) + 8, 2048))])
            assert made.read(len(raw) + 8, 2048) == raw + bytes(8)


def test_an_output_that_is_larger_than_its_region(python_client):
    with registered(python_client, 4096) as made:
        with refuses("INTERNAL", "shared memory size specified with the request for output 'OUTPUT0' (8 bytes) should be"):
            python_client.infer("py_identity", [fp32("INPUT0", range(4))], [RequestedOutput("OUTPUT0", (made.name, 8, 0))])
        with refuses("INTERNAL", "shared memory size specified with the request for output 'OUTPUT0' (8 bytes) should be"):
            given = text("INPUT0", [b"more than eight bytes"])
            python_client.infer("py_strings", [given], [RequestedOutput("OUTPUT0", (made.name, 8, 0))])


def test_an_input_and_an_output_in_the_same_place(python_client):
    with registered(python_client, 4096, fp32("", range(1024)).raw) as made:
        given = Given("INPUT0", "FP32", [1024], region=(made.name, 4096, 0))
        python_client.infer("py_identity", [given], [RequestedOutput("OUTPUT0", (made.name, 4096, 0))])
        assert made.read(4096) == fp32("", range(1024)).raw


def test_dlpack_there_and_back(python_client):
    sent = fp32("INPUT0", np.arange(100))
    reply = python_client.infer("py_dlpack", [sent])
    assert reply.outputs["OUTPUT0"].raw == reply.outputs["OUTPUT1"].raw == sent.raw


@differs("2.51 dies of numpy's capsules", run=False)
def test_dlpack_of_numpy(python_client):
    sent = fp32("INPUT0", -np.arange(1, 100))
    assert python_client.infer("py_dlpack", [sent]).outputs["OUTPUT1"].raw == sent.raw


def test_a_coroutine(python_client):
    made = python_client.infer("py_coroutine", [fp32("INPUT0", [1, 2, 3])]).outputs["OUTPUT0"]
    assert made.raw == fp32("", [2, 4, 6]).raw
    wrong = "Failed to process the request(s) for model 'py_coroutine_0', message: ValueError: a number below zero\n\nAt:\n"
    with refuses("INTERNAL", wrong):
        python_client.infer("py_coroutine", [fp32("INPUT0", [-1])])
    assert python_client.infer("py_coroutine", [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [2]).raw


@pytest.mark.parametrize("size", [1, 1000, 1 << 22, 1 << 26])
def test_outputs_made_and_given_up_again(python_client, size):
    given = Given("SIZE", "INT64", [1], np.int64(size + 3).tobytes())
    for _ in range(3):
        assert python_client.infer("py_large", [given]).outputs["MADE"].raw == bytes([(size + 3) % 256]) * (size + 3)


def test_requests_are_batched_and_stay_apart(python_client):
    """Four requests of two rows, which the scheduler may give to the model together: up to eight rows."""
    def infer(number: int):
        return python_client.infer("py_batching", [fp32("INPUT0", [[number, 1], [number, 2]])]).outputs

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for number, outputs in enumerate(pool.map(infer, range(4))):
            assert outputs["TWICE"].raw == fp32("", [[2 * number, 2], [2 * number, 4]]).raw
            assert outputs["ROWS"].raw == int32("", [[2], [2]]).raw
            assert np.frombuffer(outputs["SIZE"].raw, np.int32).max() <= 4
    with refuses("INVALID_ARG", "[request id: <id_unknown>] inference request batch-size must be <= 8 for 'py_batching'"):
        python_client.infer("py_batching", [fp32("INPUT0", np.zeros((9, 1)))])


def test_a_batch_is_given_to_the_model_at_once(python_client):
    def infer(number: int) -> int:
        outputs = python_client.infer("py_batching", [fp32("INPUT0", [[number]] * 4)]).outputs
        return int(np.frombuffer(outputs["SIZE"].raw, np.int32)[0])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(infer, range(2))) == [2, 2]


def test_two_instances_run_side_by_side(python_client, tmp_path):
    given = text("WHERE", [str(tmp_path).encode()])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = [pool.submit(python_client.infer, "py_meeting", [given]) for _ in range(2)]
        for one in running:
            assert strings(one.result().outputs["MET"].raw) == ["py_meeting_0_0", "py_meeting_0_1"]


# ---------------------------------------------------------------------------------------------- what a model sees


def facts(client, **more) -> dict:
    (found,) = strings(client.infer("py_facts", [fp32("INPUT0", [1, 2])], **more).outputs["FACTS"].raw)
    return json.loads(found)


def test_what_a_model_sees_of_a_request(python_client):
    found = facts(python_client, id="me", parameters={"number": 1, "text": "x", "truth": True, "timeout": 5_000_000})
    assert found["id"] == "me" and found["correlation_id"] == 0 and found["flags"] == 0
    assert found["timeout"] == 5_000_000
    assert found["parameters"] == {"number": 1, "text": "x", "truth": True}
    assert found["requested"] == ["FACTS"] and found["cancelled"] is False
    assert found["inputs"] == [["INPUT0", "float32", [2], True]]


def test_what_a_model_sees_of_a_bare_request(python_client):
    found = facts(python_client)
    assert (found["id"], found["timeout"], found["parameters"]) == ("", 0, {})


@pytest.mark.parametrize(
    ("parameters", "correlation", "flags"),
    [
        ({"sequence_id": 7, "sequence_start": True, "sequence_end": True}, 7, 3),
        ({"sequence_id": 2**40, "sequence_end": True}, 2**40, 2),
        ({"sequence_id": "seven", "sequence_start": True}, "seven", 1),
    ],
)
def test_what_a_model_sees_of_a_sequence(python_client, parameters, correlation, flags):
    found = facts(python_client, parameters=dict(parameters))
    assert (found["correlation_id"], found["flags"], found["parameters"]) == (correlation, flags, {})


def test_what_a_model_sees_of_its_place(python_server, python_client):
    found, folder = facts(python_client), python_server.repository / "py_facts"
    args = found["args"]
    assert set(args) == {
        "model_config", "model_instance_kind", "model_instance_name", "model_instance_device_id", "model_repository",
        "model_version", "model_name",
    }  # fmt: skip
    assert (args["model_name"], args["model_version"], args["model_instance_name"]) == ("py_facts", "1", "py_facts_0")
    assert (args["model_instance_kind"], args["model_instance_device_id"]) == ("CPU", "0")
    assert args["model_repository"] == str(folder)
    assert found["model_dir"] == str(folder / "1") and found["file"] == str(folder / "1" / "model.py")
    assert found["module"] == "1.model"
    after = found["path"].index(str(folder / "1"))
    assert found["path"][after + 1] == str(folder)
    assert found["pid"] != found["parent"] == python_server.pid


def test_the_configuration_that_a_model_is_given(python_client):
    config = json.loads(facts(python_client)["args"]["model_config"])
    assert config["name"] == "py_facts" and config["backend"] == "python"
    assert config["default_model_filename"] == "model.py" and config["max_batch_size"] == 0
    assert config["input"][0] == config["input"][0] | {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}
    assert config["output"][0]["data_type"] == "TYPE_STRING"
    assert config["instance_group"][0]["kind"] == "KIND_CPU" and config["instance_group"][0]["count"] == 1


def test_metadata_and_configuration(python_client):
    found = python_client.metadata("py_identity")
    assert (found["platform"], found["versions"]) == ("python", ["1"])
    config = python_client.config("py_identity")
    assert (config["backend"], config["platform"], config["default_model_filename"]) == ("python", "", "model.py")
    group = config["instance_group"][0]
    assert (group["name"], group["kind"], group["count"]) == ("py_identity", "KIND_CPU", 1)
    assert python_client.model_ready("py_identity")
    assert python_client.config("py_renamed")["default_model_filename"] == "renamed.py"
    assert python_client.infer("py_renamed", [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw


def test_a_model_that_completes_its_configuration(python_client):
    config = python_client.config("py_auto")
    assert config["max_batch_size"] == 4 and "dynamic_batching" in config
    assert [(one["name"], one["data_type"], one["dims"]) for one in config["input"]] == [
        ("INPUT0", "TYPE_FP32", [-1]), ("INPUT1", "TYPE_FP32", [-1])
    ]  # fmt: skip
    assert [one["optional"] for one in config["input"]] == [False, True]
    assert (config["backend"], config["default_model_filename"]) == ("python", "model.py")
    both = [fp32(f"INPUT{n}", [[1, 2]]) for n in range(2)]
    assert python_client.infer("py_auto", both).outputs["OUTPUT0"].raw == fp32("", [[2, 4]]).raw
    assert python_client.infer("py_auto", both[:1]).outputs["OUTPUT0"].raw == fp32("", [[1, 2]]).raw


@differs("2.51 lets the model write into an input's copy")
def test_inputs_cannot_be_written_to(python_client):
    given = [text("ACTION", [b"say_what_is_raised", b"write to an input"]), fp32("NUMBERS", [1, 2])]
    assert said(python_client.infer("py_actions", given)) == "ValueError: assignment destination is read-only"
