"""Which replicas of a fleet are started and stopped next, where, and how many are there to be?"""

import pytest

from nerite import fleet
from nerite.fleet import _decide
from nerite.fleet._decide import Load, Node, Replica, Steps
from nerite.fleet._spec import Resources, Scale

NOW = 1000.0


def spec(**more):
    return fleet.read({"name": "digits", "model_repository": "/srv/models", "replicas": 2, **more})


def replicas(text, release):
    """Replicas by a letter each: `r` ready, `s` starting, `f` starting and failed often, `l` starting for too long, `x` stopping, `g` gone. Capitals are of an
    earlier release."""
    found = []
    for number, letter in enumerate(text):
        kind = letter.lower()
        found.append(
            Replica(
                id=f"{letter}{number}",
                release=release if letter == kind else "earlier",
                is_ready=kind == "r",
                is_stopping=kind == "x",
                is_gone=kind == "g",
                starting_since_s={"s": NOW - 1, "f": NOW - 1, "l": NOW - 500}.get(kind),
                failures=_decide.FAILURES_MAX if kind == "f" else 0,
                pending=float(number),
            )
        )
    return found


def check(text, expect, can_go_back=False, **more):
    made = spec(**more)
    assert _decide.next_steps(made, made.replicas.min, replicas(text, made.release), can_go_back, NOW) == expect


@pytest.mark.parametrize(
    ("text", "expect"),
    [
        ("", Steps(start=2)),
        ("s", Steps(start=1)),
        ("ss", Steps()),
        ("rs", Steps()),
        ("rr", Steps(is_complete=True)),
        ("rx", Steps(start=1)),
        ("rg", Steps(start=1)),
        ("rrx", Steps()),
        # Those that are not ready stop first, then those with the fewest requests.
        ("rrs", Steps(stop=("s2",))),
        ("rrr", Steps(stop=("r0",))),
        # The one that was gone is back, and another was started for it.
        ("rrrr", Steps(stop=("r0", "r1"))),
    ],
)
def test_replicas_are_as_many_as_wanted(text, expect):
    check(text, expect)


@pytest.mark.parametrize(
    ("text", "expect"),
    [
        ("RR", Steps(start=1)),
        ("RRs", Steps()),
        ("RRr", Steps(stop=("R0",))),
        ("XRr", Steps(start=1)),
        ("XRrs", Steps()),
        ("XRrr", Steps(stop=("R1",))),
        ("rrX", Steps()),
        ("rr", Steps(is_complete=True)),
        # An old one that serves nobody goes as soon as a new one is there.
        ("RS", Steps(start=1)),
        ("RSr", Steps(stop=("S1",))),
        # One is lost during the roll: the other old one serves on until two are ready.
        ("Rr", Steps(start=1)),
        ("RRRR", Steps(stop=("R0",))),
    ],
)
def test_a_release_is_replaced_one_by_one_and_two_are_always_ready(text, expect):
    check(text, expect, can_go_back=True)


@pytest.mark.parametrize(
    ("text", "expect"),
    [("RR", Steps(stop=("R0",))), ("XR", Steps(start=1)), ("XRs", Steps()), ("Rr", Steps(stop=("R0",))), ("r", Steps(start=1)), ("rr", Steps(is_complete=True))],
)
def test_where_there_is_no_room_for_both_an_old_one_stops_first(text, expect):
    check(text, expect, can_go_back=True, rollout={"surge": 0})


def test_a_new_replica_that_does_not_get_ready_makes_the_fleet_go_back():
    check("RRf", Steps(back="replica f2 ended 3 times before it was ready"), can_go_back=True)
    check("RRl", Steps(back="replica l2 was not ready within 120 s"), can_go_back=True)
    check("xf", Steps(back="replica f1 ended 3 times before it was ready"), can_go_back=True, rollout={"surge": 0})
    # There is nothing to go back to.
    check("lf", Steps())
    # What was new is old then, and goes.
    check("rrF", Steps(stop=("F2",)))


@pytest.mark.parametrize(
    ("nodes", "expect"),
    [
        ([], None),
        ([Node("a", 4, 0, 0, 1), Node("b", 1, 0, 0, 0)], "b"),
        ([Node("a", 4, 0, 0, 1), Node("b", 0.5, 0, 0, 0)], "a"),
        ([Node("a", 2, 0, 0, 1), Node("b", 4, 0, 0, 1)], "b"),
        ([Node("b", 2, 0, 0, 0), Node("a", 2, 0, 0, 0)], "a"),
    ],
)
def test_a_replica_is_placed_where_the_fewest_are(nodes, expect):
    assert _decide.place(Resources(cpu=1), nodes) == expect


def test_a_replica_is_placed_where_all_that_it_needs_is():
    nodes = [Node("a", 8, 0, 64, 0), Node("b", 8, 1, 8, 0), Node("c", 8, 1, 64, 5)]
    assert _decide.place(Resources(cpu=1, gpu=1, memory_bytes=16), nodes) == "c"


SCALE = Scale(min=1, max=4, pending=8, queue_ms=100, down_after_s=60)
IDLE, QUIET, BUSY = Load(0, 0), Load(2, 10), Load(100, 900)


@pytest.mark.parametrize(
    ("count", "ready", "load", "quiet_since_s", "expect"),
    [
        (1, 1, BUSY, None, (2, None)),
        (2, 2, BUSY, None, (4, None)),
        (3, 3, BUSY, None, (4, None)),
        (4, 4, BUSY, None, (4, None)),
        # The load of one that is not there yet is not known.
        (2, 1, BUSY, None, (2, None)),
        (2, 2, Load(9, 0), None, (3, None)),
        (2, 2, Load(0, 101), None, (3, None)),
        (2, 2, Load(8, 100), None, (2, None)),
        (2, 2, IDLE, None, (2, NOW)),
        (2, 2, IDLE, NOW - 59, (2, NOW - 59)),
        (2, 2, IDLE, NOW - 60, (1, NOW)),
        (2, 2, BUSY, NOW - 59, (4, None)),
        (1, 1, IDLE, None, (1, None)),
        # One replica fewer would have more than half of what adds one.
        (2, 2, Load(3, 0), NOW - 60, (2, None)),
        (4, 4, QUIET, NOW - 60, (3, NOW)),
        # The bounds were changed.
        (9, 4, IDLE, None, (4, NOW)),
        (0, 0, IDLE, None, (1, None)),
    ],
)
def test_the_number_of_replicas_follows_the_load(count, ready, load, quiet_since_s, expect):
    assert _decide.wanted_count(SCALE, count, ready, load, quiet_since_s, NOW) == expect
