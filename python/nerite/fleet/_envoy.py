"""What does Envoy get to know, so that no request is lost when a replica goes?

Pure functions. The bootstrap is static. The endpoints are in files beside it (EDS). Envoy reads one again whenever
another file is renamed to its name.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any, Dict, List, Sequence

from nerite.fleet._spec import Proxy

TYPES = "type.googleapis.com/envoy"
PROTOCOLS = ("http", "grpc")
ENDPOINTS = {"http": "http-endpoints.json", "grpc": "grpc-endpoints.json"}
SEQUENCE_HEADER = "nerite-sequence-id"
READY_PATH = "/v2/health/ready"
# Requests that one proxy has at most, and those that it sends again at one time.
REQUESTS_MAX, RETRIES_MAX = 65536, 1024
RETRIES_PER_REQUEST = 3
# Each client's connection is two here, one to the inner listener.
CONNECTIONS_MAX = 10_000
HEAP = "envoy.resource_monitors.fixed_heap"
# Near the limit of memory, requests that hold 2^20 bytes and more are ended, the largest first.
HEAVY_POWER = 20
CONNECT_S, CHECK_EVERY_S = 1.0, 1.0
# A model has five seconds to say that it is ready.
CHECK_ANSWER_S = 6.0
# Less than --http-idle-timeout: the proxy closes idle connections, and not the replica.
UPSTREAM_IDLE_S = 600.0
# A connection on which nothing is acknowledged for so long is lost.
SILENT_S = 3.0
TCP, TCP_USER_TIMEOUT = 6, 18
# Between pings on a connection to a replica, and for the answer to one.
PING_S = 2.0
# A stream on which nothing passes for an hour is ended.
IDLE_S = 3600.0
HEADERS_S = 10.0
STREAMS_MAX = 256
WINDOW_BYTES = 4 << 20
ENDPOINT_REFUSED = "is for one replica, and a fleet has several: use `nerite fleet roll` for models, nerite.connect('fleet:NAME') for shared memory"
LOST = "the replica ended or was cut off while it had this request"
# Calls that change the state of one replica.
HTTP_PER_REPLICA = (r"/v2/.*sharedmemory/.*register", r"/v2/repository/models/[^/]+/(un)?load", r"/v2/(models/.+/)?trace/setting", r"/v2/logging")
GRPC_SERVICE = "/inference.GRPCInferenceService/"
GRPC_PER_REPLICA = (
    "RepositoryModelLoad RepositoryModelUnload SystemSharedMemoryRegister SystemSharedMemoryUnregister CudaSharedMemoryRegister CudaSharedMemoryUnregister TraceSetting LogSettings"
).split()


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where a replica is."""

    host: str
    http_port: int
    grpc_port: int


def endpoint_files(endpoints: Sequence[Endpoint]) -> Dict[str, str]:
    """The names and contents of the files with the endpoints, one for each protocol."""
    return {
        ENDPOINTS["http"]: _assignment("http", [_endpoint(one.host, one.http_port, one.http_port) for one in endpoints]),
        ENDPOINTS["grpc"]: _assignment("grpc", [_endpoint(one.host, one.grpc_port, one.http_port) for one in endpoints]),
    }


def _assignment(name: str, endpoints: List[Dict[str, Any]]) -> str:
    resource = {"@type": f"{TYPES}.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
    return json.dumps({"resources": [resource]}, indent=1)


def _endpoint(host: str, port: int, health_port: int) -> Dict[str, Any]:
    address = {"socket_address": {"address": host, "port_value": port}}
    return {"endpoint": {"address": address, "health_check_config": {"port_value": health_port}}}


def bootstrap(name: str, proxy: Proxy, folder: str, generation: int) -> Dict[str, Any]:
    """Envoy's bootstrap for the fleet ``name``. The files with the endpoints must be in the folder. The admin interface becomes a Unix socket there.

    ``generation`` differs between Envoys that run at one time.
    """
    inner = {protocol: f"{folder}/{protocol}-{generation}.sock" for protocol in PROTOCOLS}
    return {
        "node": {"id": name, "cluster": "nerite"},
        "admin": {"address": {"pipe": {"path": admin_path(folder, generation), "mode": 0o600}}},
        "static_resources": {
            "listeners": [
                *(_listener(protocol, proxy) for protocol in PROTOCOLS),
                *(_inner_listener(protocol, proxy, inner[protocol]) for protocol in PROTOCOLS),
            ],
            "clusters": [
                *(_cluster(protocol, is_sequence, folder) for protocol in PROTOCOLS for is_sequence in (False, True)),
                *(_inner_cluster(protocol, inner[protocol]) for protocol in PROTOCOLS),
            ],
        },
        "overload_manager": _overload(proxy),
    }


def admin_path(folder: str, generation: int) -> str:
    """The Unix socket of the admin interface."""
    return f"{folder}/admin-{generation}.sock"


def _listener(protocol: str, proxy: Proxy) -> Dict[str, Any]:
    """Where clients connect. It passes each connection to the inner listener with a header of the PROXY protocol, because Envoy gives the address of a client
    to a replica only if the connection came with one."""
    port = proxy.http_port if protocol == "http" else proxy.grpc_port
    forward = {"@type": f"{TYPES}.extensions.filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": f"{protocol}-forward", "cluster": f"{protocol}-inner", "idle_timeout": "0s"}
    return {
        "name": protocol,
        "address": {"socket_address": {"address": proxy.address, "port_value": port, "ipv4_compat": proxy.address == "::"}},
        # A port that another program has, such as the proxy of a second fleet, is an error, and not shared with it.
        "enable_reuse_port": False,
        "filter_chains": [{"filters": [{"name": "forward", "typed_config": forward}]}],
    }


def _inner_listener(protocol: str, proxy: Proxy, path: str) -> Dict[str, Any]:
    chain: Dict[str, Any] = {"filters": [{"name": "http", "typed_config": _connections(protocol, proxy)}]}
    if proxy.tls_certificate:
        chain["transport_socket"] = _tls(proxy, protocol)
    return {
        "name": f"{protocol}-inner",
        # Not one of Envoy's internal listeners: these drop a response that ends its connection.
        "address": {"pipe": {"path": path, "mode": 0o600}},
        # A request is kept until it is answered, to send it again.
        "per_connection_buffer_limit_bytes": proxy.request_bytes_max,
        "listener_filters": [{"name": "client", "typed_config": {"@type": f"{TYPES}.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol"}}],
        "filter_chains": [chain],
    }


def _inner_cluster(protocol: str, path: str) -> Dict[str, Any]:
    endpoint = {"endpoint": {"address": {"pipe": {"path": path}}}}
    return {
        "name": f"{protocol}-inner",
        "type": "STATIC",
        "circuit_breakers": {"thresholds": [{"max_connections": REQUESTS_MAX, "max_pending_requests": REQUESTS_MAX, "max_requests": REQUESTS_MAX}]},
        "load_assignment": {"cluster_name": f"{protocol}-inner", "endpoints": [{"lb_endpoints": [endpoint]}]},
        "transport_socket": _naming_the_client(),
    }


def _naming_the_client() -> Dict[str, Any]:
    """Connections begin with a header that names the client, so that a replica keeps quotas for each, and gives none the rights of the proxy's user."""
    raw = {"name": "raw", "typed_config": {"@type": f"{TYPES}.extensions.transport_sockets.raw_buffer.v3.RawBuffer"}}
    config = {"@type": f"{TYPES}.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport", "config": {"version": "V2"}, "transport_socket": raw}
    return {"name": "client", "typed_config": config}


def _tls(proxy: Proxy, protocol: str) -> Dict[str, Any]:
    certificate = {"certificate_chain": {"filename": proxy.tls_certificate}, "private_key": {"filename": proxy.tls_key}}
    common = {"tls_certificates": [certificate], "alpn_protocols": ["h2"] if protocol == "grpc" else ["h2", "http/1.1"]}
    return {"name": "tls", "typed_config": {"@type": f"{TYPES}.extensions.transport_sockets.tls.v3.DownstreamTlsContext", "common_tls_context": common}}


def _connections(protocol: str, proxy: Proxy) -> Dict[str, Any]:
    """The settings of clients' connections."""
    return {
        "@type": f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": protocol,
        "codec_type": "AUTO" if protocol == "http" else "HTTP2",
        "generate_request_id": False,
        "server_header_transformation": "PASS_THROUGH",
        "stream_idle_timeout": _seconds(IDLE_S),
        "request_headers_timeout": _seconds(HEADERS_S),
        "http2_protocol_options": {"max_concurrent_streams": STREAMS_MAX, "initial_stream_window_size": WINDOW_BYTES, "initial_connection_window_size": 4 * WINDOW_BYTES},
        "route_config": {"name": protocol, "virtual_hosts": [{"name": protocol, "domains": ["*"], "routes": _routes(protocol, proxy)}]},
        "http_filters": [
            {"name": "sequence", "typed_config": {"@type": f"{TYPES}.extensions.filters.http.lua.v3.Lua", "default_source_code": {"inline_string": _script()}}},
            {"name": "router", "typed_config": {"@type": f"{TYPES}.extensions.filters.http.router.v3.Router", "suppress_envoy_headers": True}},
        ],
        "local_reply_config": _own_replies(protocol),
    }


def _script() -> str:
    return pathlib.Path(__file__).with_name("sequence.lua").read_text(encoding="utf-8")


def _routes(protocol: str, proxy: Proxy) -> List[Dict[str, Any]]:
    """The first route that fits is taken."""
    if protocol == "http":
        per_replica = [{"safe_regex": {"regex": one}, "headers": [{"name": ":method", "string_match": {"exact": "POST"}}]} for one in HTTP_PER_REPLICA]
        stream = {"safe_regex": {"regex": r".*/generate_stream"}}
    else:
        per_replica = [{"path": GRPC_SERVICE + call} for call in GRPC_PER_REPLICA]
        stream = {"path": GRPC_SERVICE + "ModelStreamInfer"}
    sequence = {"prefix": "/", "headers": [{"name": SEQUENCE_HEADER, "present_match": True}]}
    refusal = f"this call {ENDPOINT_REFUSED}"
    return [
        *({"match": match, "direct_response": {"status": 403, "body": {"inline_string": refusal}}} for match in per_replica),
        {"match": sequence, "route": {**_action(f"{protocol}-sequences", "connect-failure"), "hash_policy": [{"header": {"header_name": SEQUENCE_HEADER}}]}},
        {"match": stream, "route": _action(protocol, "connect-failure")},
        {"match": {"prefix": "/"}, "route": _action(protocol, proxy.retry)},
    ]


def _action(cluster: str, retry: str) -> Dict[str, Any]:
    """Where a request goes, and when it is sent again. ``connect-failure``: only if no replica can have got it."""
    retry_on = "connect-failure,refused-stream"
    more: Dict[str, Any] = {}
    if retry == "repeat":
        retry_on += ",reset,retriable-status-codes,unavailable"
        # A replica that stops, or whose queue is full.
        more = {"retriable_status_codes": [503]}
    policy = {
        "retry_on": retry_on,
        **more,
        "num_retries": RETRIES_PER_REQUEST,
        "retry_host_predicate": [{"name": "previous_hosts", "typed_config": {"@type": f"{TYPES}.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"}}],
        # The replica that was lost has the fewest requests, so the balancer prefers it.
        "host_selection_retry_max_attempts": 20,
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
    }
    # Envoy's own limit would be 15 s. A model may take as long as the client waits.
    return {"cluster": cluster, "timeout": "0s", "max_stream_duration": {"grpc_timeout_header_max": "0s"}, "retry_policy": policy}


def _own_replies(protocol: str) -> Dict[str, Any]:
    """Errors that the proxy makes itself, in the form that clients read."""
    lost = {
        "filter": {"response_flag_filter": {"flags": ["UC", "UR", "LR"]}},
        "body": {"inline_string": LOST},
    }
    if protocol == "grpc":
        return {"mappers": [lost], "body_format": {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}}}
    return {"mappers": [lost], "body_format": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}}}


def _cluster(protocol: str, is_sequence: bool, folder: str) -> Dict[str, Any]:
    http2: Dict[str, Any] = {
        "initial_stream_window_size": WINDOW_BYTES,
        "initial_connection_window_size": 4 * WINDOW_BYTES,
        "connection_keepalive": {"interval": _seconds(PING_S), "timeout": _seconds(PING_S)},
    }
    explicit: Dict[str, Any] = {"http2_protocol_options": http2} if protocol == "grpc" else {"http_protocol_options": {}}
    common = {"idle_timeout": _seconds(UPSTREAM_IDLE_S)}
    options = {"@type": f"{TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions", "common_http_protocol_options": common, "explicit_http_config": explicit}
    return {
        "name": f"{protocol}-sequences" if is_sequence else protocol,
        "type": "EDS",
        "eds_cluster_config": {"service_name": protocol, "eds_config": {"resource_api_version": "V3", "path_config_source": {"path": f"{folder}/{ENDPOINTS[protocol]}"}}},
        "connect_timeout": _seconds(CONNECT_S),
        "lb_policy": "RING_HASH" if is_sequence else "LEAST_REQUEST",
        # A replica that is not ready gets no request, also if no other is ready. Envoy would merge changes of health for a second.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
        "ignore_health_on_host_removal": True,
        "circuit_breakers": {"thresholds": [{"max_connections": REQUESTS_MAX, "max_pending_requests": REQUESTS_MAX, "max_requests": REQUESTS_MAX, "max_retries": RETRIES_MAX}]},
        "health_checks": [
            {
                "timeout": _seconds(CHECK_ANSWER_S),
                "interval": _seconds(CHECK_EVERY_S),
                "no_traffic_interval": _seconds(CHECK_EVERY_S),
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"host": "localhost", "path": READY_PATH, "codec_client_type": "HTTP1"},
            }
        ],
        # Connections lost in a row alone eject a replica, until its next answer to a health check. An error of a model does not, and no client by itself.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 5,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_local_origin_success_rate": 0,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0,
            "interval": _seconds(CHECK_EVERY_S),
            "base_ejection_time": _seconds(CHECK_EVERY_S),
            "max_ejection_percent": 50,
        },
        "upstream_bind_config": {"socket_options": [_user_timeout()]},
        # The probes are what is not acknowledged while a request waits for its response.
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": 1, "keepalive_interval": 1, "keepalive_probes": int(SILENT_S)}},
        "transport_socket": _naming_the_client(),
        "connection_pool_per_downstream_connection": True,
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
    }


def _user_timeout() -> Dict[str, Any]:
    return {"description": "TCP_USER_TIMEOUT", "level": TCP, "name": TCP_USER_TIMEOUT, "int_value": int(SILENT_S * 1000), "state": "STATE_PREBIND"}


def _overload(proxy: Proxy) -> Dict[str, Any]:
    """Near the limit of memory, requests that hold much are ended first, and then new ones are refused."""

    def trigger(value: float) -> Dict[str, Any]:
        return {"name": HEAP, "threshold": {"value": value}}

    heap = {"@type": f"{TYPES}.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig", "max_heap_size_bytes": proxy.memory_bytes}
    connections = {"@type": f"{TYPES}.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig", "max_active_downstream_connections": CONNECTIONS_MAX}
    return {
        "refresh_interval": "0.25s",
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": HEAVY_POWER},
        "resource_monitors": [
            {"name": HEAP, "typed_config": heap},
            {"name": "envoy.resource_monitors.global_downstream_max_connections", "typed_config": connections},
        ],
        "actions": [
            {"name": "envoy.overload_actions.shrink_heap", "triggers": [trigger(0.8)]},
            {"name": "envoy.overload_actions.reset_high_memory_stream", "triggers": [{"name": HEAP, "scaled": {"scaling_threshold": 0.85, "saturation_threshold": 0.95}}]},
            {"name": "envoy.overload_actions.stop_accepting_requests", "triggers": [trigger(0.95)]},
        ],
    }


def _seconds(value: float) -> str:
    return f"{value:g}s"
