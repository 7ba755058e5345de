"""Which file says where the servers of a fleet are, and which of them does a thread use?"""

import json
import os

import pytest

import nerite
from nerite import _fleet

GOOD = {"http": "127.0.0.1:8000", "grpc": "[::1]:8001", "sessions": ["/run/b.sock", "/run/a.sock"], "further": 1}
OTHER = 65534


@pytest.fixture
def place(monkeypatch, tmp_path):
    """The default directory."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made = tmp_path / "nerite"
    made.mkdir(mode=0o700)
    return made


def put(place, content, name="fleet-digits.json"):
    path = place / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refused(why, fleet="digits"):
    with pytest.raises(ConnectionError, match=why):
        nerite.connect(f"fleet:{fleet}")


def test_a_fleet_has_a_file_in_the_default_directory(place):
    path = put(place, GOOD)
    assert _fleet.path_of("digits") == str(path)
    places, stamp = _fleet.read(str(path))
    assert places == ("127.0.0.1:8000", "[::1]:8001", ("/run/b.sock", "/run/a.sock"))
    assert stamp == _fleet.stamp_of(str(path)) and _fleet.stamp_of(f"{path}.no") is None


@pytest.mark.parametrize("name", ["", "Digits", "di_gits", ".", "..", "d\n", "é", "a" * 41])
def test_another_name_makes_no_path(name, monkeypatch):
    with pytest.raises(ValueError, match="is no name of a fleet"):
        nerite.connect(f"fleet:{name}")
    if name:
        monkeypatch.setenv("NERITE_FLEET", name)
        with pytest.raises(ValueError, match="is no name of a fleet"):
            nerite.connect()


def test_a_missing_file_is_named(place):
    refused(f"no fleet of that name has a proxy on this host: there is no '{place}/fleet-digits.json'; `nerite fleet status`")
    refused("there is no '/no/such/file'", "/no/such/file")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "Expecting value"),
        ("\udcff", "."),
        ("[" * 100_000, "."),
        ([], "it is no JSON object"),
        ({**GOOD, "http": None}, "'http' is None, not host:port"),
        ({**GOOD, "grpc": "http://a:1"}, "'grpc' is 'http://a:1', not host:port"),
        ({**GOOD, "http": "a:1/../b"}, "not host:port"),
        ({**GOOD, "sessions": "/run/a.sock"}, "not a list of absolute paths"),
        ({**GOOD, "sessions": ["a.sock"]}, "not a list of absolute paths"),
        ({**GOOD, "sessions": [1]}, "not a list of absolute paths"),
        ({**GOOD, "sessions": ["/a\0b"]}, "not a list of absolute paths"),
        (" " * (_fleet.FILE_BYTES_MAX + 1), "it has more than 1048576 bytes"),
    ],
)
def test_a_malformed_file_is_refused(place, content, why):
    path = place / "fleet-digits.json"
    path.write_bytes((content if isinstance(content, str) else json.dumps(content)).encode(errors="surrogateescape"))
    refused(f"fleet-digits.json' is malformed: .*{why}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(place):
    path = put(place, GOOD)
    os.chown(path, OTHER, OTHER)
    refused(f"it belongs to user {OTHER}, and this is user 0")
    refused(f"it belongs to user {OTHER}, and this is user 0", path)
    os.chown(path, 0, 0)
    os.chown(place, OTHER, OTHER)
    refused(f"its directory '{place}' belongs to user {OTHER}, and this is user 0$")


def test_a_file_that_others_may_write_is_refused(place):
    path = put(place, GOOD)
    path.chmod(0o622)
    refused("it has mode 0622: others could write to it")
    path.chmod(0o600)
    place.chmod(0o722)
    refused(f"its directory '{place}' has mode 0722")


def test_what_is_no_file_is_refused(place):
    os.mkfifo(place / "fleet-digits.json")
    refused("it is no regular file")
    (place / "fleet-b.json").mkdir()
    refused("is not used: Is a directory", "b")


@pytest.mark.parametrize(
    ("sessions", "lost", "present", "number", "chosen"),
    [
        ((), (), None, 0, None),
        (("b", "a"), (), None, 0, "a"),
        (("b", "a"), (), None, 1, "b"),
        (("b", "a"), (), None, 2, "a"),
        (("b", "a"), (), "b", 0, "b"),
        (("b", "a"), {"b"}, "b", 7, "a"),
        (("b", "a"), {"a", "b"}, "b", 7, None),
        (("a",), (), "gone", 5, "a"),
    ],
)
def test_a_thread_keeps_its_replica_as_long_as_it_can(sessions, lost, present, number, chosen):
    assert _fleet.choice(sessions, lost, present, number) == chosen


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"buffers": "region"}, ValueError, "does not go with a fleet"),
        ({"buffers": "lease"}, ValueError, "does not go with a fleet"),
        ({"session_socket": "/run/a.sock"}, ValueError, "session_socket does not go with a fleet"),
        ({"misspelt": 1}, TypeError, "to a fleet has no option 'misspelt'"),
    ],
)
def test_options_that_would_be_ignored_are_refused(place, options, error, why):
    put(place, GOOD)
    with pytest.raises(error, match=why):
        nerite.connect("fleet:digits", **options)


def test_a_session_socket_of_the_program_is_preferred_to_the_variable(place, monkeypatch):
    monkeypatch.setenv("NERITE_FLEET", "digits")
    monkeypatch.setattr("nerite._client.HTTP_DEFAULT", "http://127.0.0.1:1")
    with pytest.raises(ConnectionError, match="no session at '/no/such.sock'"):
        nerite.connect(session_socket="/no/such.sock")
