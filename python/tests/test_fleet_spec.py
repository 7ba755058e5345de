"""Which files describe a fleet, and what is said of those that do not?"""

import dataclasses
import json

import pytest

from nerite import fleet
from nerite.fleet import _spec

LEAST = {"name": "digits", "model_repository": "/srv/models"}


def check(found, expect):
    """Reads the least fleet with more keys: what it is, or what is said of it."""
    given = {**LEAST, **found}
    if isinstance(expect, str):
        with pytest.raises(fleet.FleetError) as refused:
            fleet.read(given)
        assert expect in str(refused.value)
        return
    read = fleet.read(given)
    assert {key: getattr(read, key) for key in expect} == expect


def test_what_is_not_said_has_defaults():
    check({}, {"replicas": _spec.Scale(1, 1), "resources": _spec.Resources(), "rollout": _spec.Rollout(), "proxy": _spec.Proxy(), "models": ()})


@pytest.mark.parametrize(
    ("found", "expect"),
    [
        ({"replicas": 3}, {"replicas": _spec.Scale(3, 3)}),
        ({"replicas": {"min": 1, "max": 4}, "scale": {"pending": 2}}, {"replicas": _spec.Scale(1, 4, pending=2)}),
        ({"resources": {"cpu": 2, "gpu": 0.5, "memory": "2GiB"}}, {"resources": _spec.Resources(2, 0.5, 2 << 30)}),
        ({"flags": {"--log-verbose": 1, "strict_readiness": False}}, {"flags": {"log-verbose": 1, "strict-readiness": False}}),
        ({"model_repository": "s3://bucket/models"}, {"is_bucket": True}),
        ({"models": ["a", "b"]}, {"models": ("a", "b")}),
    ],
)
def test_what_is_said_is_read(found, expect):
    check(found, expect)


@pytest.mark.parametrize(
    ("found", "expect"),
    [
        ({"name": "Digits"}, "the fleet: name is 'Digits'; use 1 to 40 of a-z, 0-9 and '-'"),
        ({"name": "../x"}, "name is '../x'"),
        ({"model_repository": "models"}, "give an absolute path that every node has"),
        ({"model_repository": None}, "the fleet: model_repository is missing; it must be a text"),
        ({"replica": 2}, "the fleet has the key 'replica', which is not one of"),
        ({"replicas": 0}, "the fleet: replicas: min is 0; it must be an integer from 1 to 1000"),
        ({"replicas": {"min": 3, "max": 2}}, "max is 2; it must be an integer from 3 to 1000"),
        ({"replicas": True}, "min is True"),
        ({"resources": {"memory": "2 GB"}}, "memory is '2 GB'; it must be a number of bytes from 0 to 1125899906842624, such as 64MiB"),
        ({"resources": {"gpu": 1.5}}, "gpu is 1.5; Ray shares one GPU, or gives whole ones"),
        ({"proxy": {"request_bytes_max": "8GiB"}}, "request_bytes_max is '8GiB'; it must be a number of bytes from 1024 to 2147483648"),
        ({"proxy": {"networks": ["10.0.0.1/8"]}}, "networks has '10.0.0.1/8': 10.0.0.1/8 has host bits set"),
        ({"resources": [1]}, "the fleet: resources has [1] where it must have keys with values"),
        ({"flags": {"http_port": 1}}, "the fleet gives --http-port itself"),
        ({"flags": {"grpc-use-ssl": True}}, "the fleet gives --grpc-use-ssl itself"),
        ({"rollout": {"surge": 2}}, "surge is 2; it must be an integer from 0 to 1"),
        ({"proxy": {"retry": "always"}}, "retry is 'always'; it is one of repeat, connect-failure"),
        ({"proxy": {"grpc_port": 8000}}, "http_port and grpc_port are both 8000"),
        ({"proxy": {"tls": {"key": "/key"}}}, "give both"),
    ],
)
def test_what_is_wrong_is_named(found, expect):
    check(found, expect)


def test_a_file_is_yaml_and_is_named_in_errors(tmp_path):
    path = tmp_path / "fleet.yaml"
    with pytest.raises(fleet.FleetError, match="fleet.yaml' cannot be read"):
        fleet.read(path)
    path.write_text("name: [")
    with pytest.raises(fleet.FleetError, match="fleet.yaml' cannot be read"):
        fleet.read(path)
    path.write_text("- name")
    with pytest.raises(fleet.FleetError, match=r"has \['name'\] where it must have keys"):
        fleet.read(path)
    path.write_text("name: digits\nmodel_repository: /srv/models\nreplicas: 2\n")
    assert fleet.read(path).replicas.min == 2


def test_what_is_kept_is_read_again():
    spec = fleet.read({**LEAST, "models": ["a"], "flags": {"log-verbose": 1}, "replicas": {"min": 1, "max": 2}, "proxy": {"networks": ["10.0.0.0/8"]}})
    assert _spec.Spec.from_json(spec.to_json()) == spec
    assert json.loads(spec.to_json())["name"] == "digits"


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ({"model_repository": "/srv/other"}, True),
        ({"models": ("a",)}, True),
        ({"flags": {"log-verbose": 2}}, True),
        ({"resources": _spec.Resources(cpu=2)}, True),
        ({"revision": 1}, True),
        ({"rollout": _spec.Rollout(exit_s=600)}, True),
        ({"replicas": _spec.Scale(1, 9)}, False),
        ({"proxy": _spec.Proxy(http_port=9000)}, False),
        ({"rollout": _spec.Rollout(surge=0)}, False),
    ],
)
def test_only_what_a_replica_runs_makes_another_release(change, is_other):
    spec = fleet.read(LEAST)
    assert (dataclasses.replace(spec, **change).release != spec.release) == is_other
