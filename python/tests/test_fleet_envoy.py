"""Does the proxy of a fleet get the rules that its pages promise?

Whether they hold with a real Envoy is seen by tests/fleet.
"""

import json

from nerite.fleet import _envoy, _operate
from nerite.fleet._spec import Proxy


def routes(listener):
    connections = next(one for one in listener["filter_chains"][0]["filters"] if one["name"] == "http")["typed_config"]
    return connections["route_config"]["virtual_hosts"][0]["routes"]


def inner(proxy, protocol):
    made = _envoy.bootstrap("digits", proxy, "/run/proxy", 3)
    return next(one for one in made["static_resources"]["listeners"] if one["name"] == f"{protocol}-inner")


def retries(proxy, protocol):
    """What is sent again: sequences, streams, everything else."""
    return [one["route"]["retry_policy"]["retry_on"] for one in routes(inner(proxy, protocol)) if "route" in one]


def test_sequences_and_streams_are_never_repeated_and_other_requests_if_wanted():
    never, repeated = "connect-failure,refused-stream", "connect-failure,refused-stream,reset,retriable-status-codes,unavailable"
    for protocol in ("http", "grpc"):
        assert retries(Proxy(), protocol) == [never, never, repeated]
        assert retries(Proxy(retry="connect-failure"), protocol) == [never, never, never]


def test_no_limit_of_time_is_the_proxys_own():
    for protocol in ("http", "grpc"):
        assert {one["route"]["timeout"] for one in routes(inner(Proxy(), protocol)) if "route" in one} == {"0s"}


def test_requests_are_bounded_and_a_certificate_means_tls():
    listener = inner(Proxy(request_bytes_max=1 << 20, tls_certificate="/a", tls_key="/b"), "grpc")
    assert listener["per_connection_buffer_limit_bytes"] == 1 << 20
    assert "DownstreamTlsContext" in json.dumps(listener["filter_chains"][0]["transport_socket"])
    assert "transport_socket" not in inner(Proxy(), "grpc")["filter_chains"][0]


def test_each_protocol_has_its_endpoints_and_health_is_that_of_http():
    files = _envoy.endpoint_files([_envoy.Endpoint("10.0.0.1", 8000, 8001)])
    found = {name: json.loads(content)["resources"][0]["endpoints"][0]["lb_endpoints"][0]["endpoint"] for name, content in files.items()}
    ports = {name: (one["address"]["socket_address"]["port_value"], one["health_check_config"]["port_value"]) for name, one in found.items()}
    assert ports == {"http-endpoints.json": (8000, 8000), "grpc-endpoints.json": (8001, 8000)}
    assert json.loads(_envoy.endpoint_files([])["http-endpoints.json"])["resources"][0]["endpoints"][0]["lb_endpoints"] == []


def test_a_status_is_a_table():
    replica = {"id": "a-1", "release": "a", "is_lost": False, "is_ready": True, "http": "10.0.0.1:8000", "grpc": "10.0.0.1:8001", "pending": 3.0, "restarts": 1, "error": ""}
    starting = {"id": "a-2", "release": "a", "is_lost": True, "error": "no room"}
    shown = {"name": "digits", "wanted": 2, "release": "a", "is_rolling": True, "note": "", "replicas": [replica, starting], "proxies": [{"node": "n", "host": "10.0.0.1", "pid": 1, "is_live": True, "error": ""}]}
    assert _operate.table(shown) == [
        "fleet digits: rolling, release a, 1 of 2 replicas ready",
        "REPLICA  RELEASE  STATE     HTTP           GRPC           PENDING  RESTARTS",
        "a-1      a        ready     10.0.0.1:8000  10.0.0.1:8001  3        1",
        "a-2      a        starting  -              -              0        0",
        "PROXY ON  STATE  RESTARTS",
        "10.0.0.1  up     0",
        "a-2: no room",
    ]
