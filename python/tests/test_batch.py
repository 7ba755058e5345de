"""Do many small inferences in one packet cost little, and does each get its own outputs?"""

import copy
import pickle

import numpy as np
import pytest
from test_call import client, nerite_server  # noqa: F401 - fixtures
from test_call_lost import made_server  # noqa: F401 - a fixture
from test_several import FAILED, Prepares
from tritonclient.utils import InferenceServerException

import nerite
from nerite import _response

COUNT = 32


@pytest.fixture
def identity(client):  # noqa: F811
    return client.model("identity_fp32")


def packets_of(model) -> list[int]:
    """The sizes of the packets that its connection sends from now on."""
    (connection,) = model._client._all
    sent, send = [], connection.send_packet
    connection.send_packet = lambda packet: (sent.append(len(packet)), send(packet))[1]
    return sent


def only_plan(model):
    (connection,) = model._client._all
    (plan,) = connection.plans.values()
    return plan


def numbered(first=0, count=COUNT, dtype=np.float32) -> list[np.ndarray]:
    return [np.full(16, first + at, dtype) for at in range(count)]


def test_a_loop_whose_last_results_are_alive_uses_two_groups_in_turns(identity):
    for _ in range(3):
        found = identity.batch(numbered())
    sent = packets_of(identity)
    for first in range(0, 10 * COUNT, COUNT):
        found = identity.batch(numbered(first))
        assert [one.OUTPUT0[0] for one in found] == list(range(first, first + COUNT))
    assert len(sent) == 10 and len(set(sent)) <= 2, "one packet for each 32 calls"
    assert len(only_plan(identity).groups[COUNT]) == 2


@pytest.mark.parametrize("kept", [lambda found: found, lambda found: [one.OUTPUT0 for one in found], lambda found: [one.OUTPUT0[1:] for one in found], lambda found: found[7:8]])
def test_what_is_kept_of_a_batch_stays_as_it_was(identity, kept):
    for _ in range(3):
        identity.batch(numbered())
    still = kept(identity.batch(numbered(1000)))
    for first in range(0, 20 * COUNT, COUNT):
        identity.batch(numbered(first))
        identity(np.full(16, -1, np.float32))
    read = [one.OUTPUT0 if isinstance(one, nerite.Response) else one for one in still]
    first = 1007 if len(read) == 1 else 1000
    assert [set(one.tolist()) for one in read] == [{first + at} for at in range(len(read))]


def test_one_output_that_is_kept_keeps_one_slot_only(identity):
    for _ in range(3):
        identity.batch(numbered())
    kept = [identity.batch(numbered())[0].OUTPUT0 for _ in range(40)]
    (connection,) = identity._client._all
    assert connection.slots <= 40 + 2 * COUNT, "32 for each would be 1,280"
    assert all(one[0] == 0 for one in kept)


def test_batches_of_every_size_and_kind_are_one_packet(identity, client):  # noqa: F811
    kinds = [lambda one: one, lambda one: (one,), lambda one: {"INPUT0": one}]
    for _ in range(3):
        identity.batch(numbered())
    sent = packets_of(identity)
    for count in (1, 2, 31, COUNT):
        for kind in kinds:
            found = identity.batch([kind(one) for one in numbered(count, count)])
            assert [one.OUTPUT0[0] for one in found] == list(range(count, 2 * count))
    # A dtype that is equal, but another object. And several shapes and kinds at once.
    for _ in range(4):
        sent.clear()
        other = numbered(5, 3, np.dtype("f4", metadata={"a": 1}))
        mixed = [kind(one) for kind, one in zip(kinds, other)]
        assert [one.OUTPUT0[0] for one in identity.batch(mixed)] == [5, 6, 7]
        assert [len(one.OUTPUT0) for one in identity.batch([np.ones(16, np.float32), np.ones(3, np.float32)])] == [16, 3]
    assert len(sent) == 2
    assert identity.batch([]) == []


def test_a_batch_of_a_model_with_two_inputs_is_one_packet(client):  # noqa: F811
    simple = client.model("simple")
    rows = [(np.full((1, 16), at, np.int32), np.full((1, 16), 100, np.int32)) for at in range(COUNT)]
    by_name = [dict(zip(("INPUT0", "INPUT1"), reversed(row))) for row in rows]
    for _ in range(3):
        found = simple.batch(rows)
    sent = packets_of(simple)
    for requests, sign in ((rows, 1), (by_name, -1)):
        found = simple.batch(requests)
        assert [one.OUTPUT0[0, 0] for one in found] == [100 + at for at in range(COUNT)]
        assert [one.OUTPUT1[0, 0] for one in found] == [sign * (at - 100) for at in range(COUNT)]
    assert len(sent) == 2
    with pytest.raises(TypeError, match="has no input 'nope'"):
        simple.batch([{"INPUT0": rows[0][0], "nope": rows[0][1]}])


def test_a_response_is_copied_and_pickled_without_the_memory_around_it(identity):
    for _ in range(3):
        found = identity.batch(numbered())
    whole, again = pickle.loads(pickle.dumps(found[3])), copy.deepcopy(found[4])
    assert (whole.OUTPUT0.tolist(), again.OUTPUT0.tolist()) == ([3] * 16, [4] * 16)
    assert (whole.model, list(whole), list(whole.keys())) == (found[3].model, [whole.OUTPUT0], ["OUTPUT0"])
    assert len(pickle.dumps(found[3])) < 600


def test_the_outputs_of_a_prepared_call_are_found_without_an_exception(identity):
    responses = [identity.batch(numbered()) for _ in range(3)][-1] + [identity(np.ones(16, np.float32))]
    for one in responses:
        assert isinstance(one, nerite.Response) and type(one).__name__ == "Response"
        assert isinstance(vars(type(one))["OUTPUT0"], property) and one.OUTPUT0 is one["OUTPUT0"]
        with pytest.raises(AttributeError, match="no output 'OUTPUT1', the response has OUTPUT0"):
            one.OUTPUT1
    assert len(set(map(type, responses))) == 1


def test_an_output_hides_no_part_of_a_response():
    names = ("keys", "model", "__len__", "_head", "no identifier", "y")
    made = _response.response_class(names)({name: np.full(1, at) for at, name in enumerate(names)}, _response.Head("m"))
    assert (made.model, len(made), made._head.model, list(made.keys())) == ("m", 6, "m", list(names))
    assert (made.y, getattr(made, "no identifier"), made["keys"], made["_head"]) == (5, 4, 0, 3)


@pytest.fixture
def counts(made_server):  # noqa: F811
    server = made_server(Prepares)
    with nerite.connect(f"unix:{server.path}") as made:
        yield server, made.model("counts")


def test_after_a_call_of_a_batch_failed_each_slot_is_free_once(counts):
    server, model = counts
    requests = [np.array([at], np.int32) for at in range(3)]
    for _ in range(2):
        server.values = [[1], [2], [3]]
        model.batch(requests)
    for failing in range(3):
        server.values = [[1], [2], [3]]
        server.values[failing] = [FAILED]
        found = model.batch(requests, return_errors=True)
        assert [isinstance(one, InferenceServerException) for one in found] == [at == failing for at in range(3)]
        del found
        free = list(only_plan(model).free)
        assert sorted(one.handle for one in free) == sorted(one.handle for one in only_plan(model).slots), "each once"
        server.values, server.called = [[4], [5], [6]], []
        assert [one.OUT.tolist() for one in model.batch(requests)] == [[4], [5], [6]]
        assert len({handle for _, _, handle in server.called}) == 3, "none is called twice at once"
