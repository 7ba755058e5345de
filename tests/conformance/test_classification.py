"""Are outputs turned into classes as clients know them?"""

import struct

import numpy as np
import pytest
from catalogue import LABELS
from clients import Given, Reply, RequestedOutput, differs, fp32, int32, refuses, text

SCORES = [0.1, 0.7, -1.5, 0.2]


def classes(reply: Reply, name: str = "OUTPUT0") -> tuple[list[int], list[str]]:
    made = reply.outputs[name]
    assert made.datatype == "BYTES"
    found, rest = [], made.raw
    while rest:
        (size,) = struct.unpack_from("<I", rest)
        found.append(rest[4 : 4 + size].decode())
        rest = rest[4 + size :]
    return made.shape, found


def infer(client, model: str, given: Given, count: int):
    return client.infer(model, [given], [RequestedOutput("OUTPUT0", parameters={"classification": count})])


def test_the_best_with_their_labels(client):
    shape, found = classes(infer(client, "classes", fp32("INPUT0", [SCORES]), 2))
    assert shape == [1, 2]
    assert found == [f"0.700000:1:{LABELS[1]}", f"0.200000:3:{LABELS[3]}"]


def test_each_row_for_itself(client):
    shape, found = classes(infer(client, "classes", fp32("INPUT0", [SCORES, SCORES[::-1]]), 1))
    assert shape == [2, 1]
    assert found == [f"0.700000:1:{LABELS[1]}", f"0.700000:2:{LABELS[2]}"]


def test_no_more_classes_than_elements(client):
    shape, found = classes(infer(client, "classes", fp32("INPUT0", [SCORES]), 99))
    assert shape == [1, 4]
    assert [one.split(":")[1] for one in found] == ["1", "3", "0", "2"]


def test_odd_numbers_are_written_as_c_writes_them(client):
    given = fp32("INPUT0", [[-0.0, 0.0, float("-inf"), float("inf")]])
    shape, found = classes(infer(client, "classes", given, 4))
    assert found == [f"inf:3:{LABELS[3]}", f"-0.000000:0:{LABELS[0]}", f"0.000000:1:{LABELS[1]}", f"-inf:2:{LABELS[2]}"]
    given = fp32("INPUT0", [[float("nan")] * 4])
    assert classes(infer(client, "classes", given, 1))[1][0].split(":")[0] == "nan"


@differs("an output of no elements kills 2.51", run=False)
def test_an_output_without_elements_has_no_classes(client):
    shape, found = classes(infer(client, "identity_int64", Given("INPUT0", "INT64", [0], b""), 2))
    assert (shape, found) == ([0], [])


def test_whole_numbers_without_labels_and_without_batch(client):
    shape, found = classes(infer(client, "classes_int32", int32("INPUT0", [5, -1, 9, 0]), 3))
    assert (shape, found) == ([3], ["9:2", "5:0", "0:3"])


def test_digits_are_recognised(client):
    from make_models import EXAMPLES

    raw = (EXAMPLES.parent / "digits" / "samples.bin").read_bytes()
    samples = np.frombuffer(raw[4:], np.uint8).reshape(struct.unpack_from("<I", raw)[0], 65)
    batch = samples[:50]
    outputs = [RequestedOutput("probabilities", parameters={"classification": 1})]
    given = fp32("image", batch[:, :64].astype(np.float32))
    shape, found = classes(client.infer("digits", [given], outputs), "probabilities")
    assert shape == [50, 1]
    right = sum(int(one.split(":")[1]) == truth for one, truth in zip(found, batch[:, 64]))
    assert right >= 46
    assert found[0].split(":")[2] in "zero one two three four five six seven eight nine".split()


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "BOOL"])
def test_types_without_classes(client, datatype):
    with refuses("INVALID_ARG", f"class result not available for output due to unsupported type '{datatype}'"):
        infer(client, f"identity_{datatype.lower()}", Given("INPUT0", datatype, [2], bytes(4 if datatype != "BOOL" else 2)), 1)


@differs("BYTES kills 2.51 with a division by zero", run=False)
def test_strings_have_no_classes(client):
    with refuses("INVALID_ARG", "class result not available for output due to unsupported type 'BYTES'"):
        infer(client, "identity_bytes", text("INPUT0", [b"a"]), 1)


@pytest.mark.parametrize("datatype", ["INT8", "INT16", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP64"])
def test_every_number_has_classes(client, datatype):
    from clients import NUMPY

    values = np.array([1, 3, 2], NUMPY[datatype])
    given = Given("INPUT0", datatype, [3], values.tobytes())
    shape, found = classes(infer(client, f"identity_{datatype.lower()}", given, 2))
    assert shape == [2]
    assert [one.split(":")[1] for one in found] == ["1", "2"]
    assert found[0].split(":")[0] == ("3.000000" if datatype == "FP64" else "3")


def test_zero_means_none_over_http(server):
    from clients import HttpClient

    reply = infer(HttpClient(server.http), "classes", fp32("INPUT0", [SCORES]), 0)
    assert reply.outputs["OUTPUT0"].datatype == "FP32"
