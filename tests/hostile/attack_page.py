"""Which attacks go through the page for browsers?"""

import contextlib
import json
import socket

from attack_connections import HELD_S
from attack_table import attack, close_after, crowd
from clients import http_call
from strangers import connect

PATHS = ("/", "/ui/main.js", "/metrics", "/ui/api/visitor", "/ui/api/models", "/ui/api/memory", "/ui/api/requests/0", "/ui/api/traces/1")
ELEMENTS = 1 << 21
JSON = {"Content-Type": "application/json"}


@attack
def page_in_a_storm(server):
    """requests for all that the page asks for, sent without end, whose answers nobody reads"""
    heads = "".join(f"GET {path} HTTP/1.1\r\nHost: {server.metrics}\r\n\r\n" for path in PATHS).encode()
    made = [connect(server.metrics) for _ in range(8)]
    for one in made:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        one.settimeout(0.5)
        with contextlib.suppress(OSError):
            for _ in range(50):
                one.sendall(heads * 30)
    close_after(0, made)


@attack
def page_with_many_requests(server):
    """inferences through the page whose traces nobody fetches, and answers of 8 MiB that nobody reads"""
    small = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}
    path = "/ui/api/v2/models/identity_fp32/infer"
    crowd(100, lambda at: http_call(server.metrics, "POST", path, small, JSON | {"nerite-page-trace": str(at)}))
    head = json.dumps({
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [ELEMENTS], "parameters": {"binary_data_size": 4 * ELEMENTS}}],
        "parameters": {"binary_data_output": True},
    }).encode()
    lines = (
        f"POST {path} HTTP/1.1\r\nHost: {server.metrics}\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(head) + 4 * ELEMENTS}\r\n\r\n"
    )
    made = [connect(server.metrics) for _ in range(4)]
    for one in made:
        with contextlib.suppress(OSError):
            one.sendall(lines.encode() + head + bytes(4 * ELEMENTS))
    close_after(HELD_S, made)
