"""What may a client of another host do through the page for browsers?"""

import contextlib
import json
import os
import shutil
import subprocess

import pytest
import servers

# Addresses for benchmarks of networks (RFC 2544), which nobody has.
HERE, THERE = "198.18.77.1", "198.18.77.2"


@pytest.fixture(scope="module")
def another_host():
    """A network namespace with a wire to this one: for the server, an address of which it knows no user."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("curl") is None:
        pytest.skip("makes a network namespace, which needs root, iproute2 and curl")
    name = f"nerite{os.getpid() % 100_000}"
    wires = f"na{os.getpid() % 100_000}", f"nb{os.getpid() % 100_000}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    with contextlib.ExitStack() as undo:
        try:
            ip("netns", "add", name)
            undo.callback(subprocess.run, ["ip", "netns", "del", name], check=False, capture_output=True)
            ip("link", "add", wires[0], "type", "veth", "peer", "name", wires[1], "netns", name)
            undo.callback(subprocess.run, ["ip", "link", "del", wires[0]], check=False, capture_output=True)
            ip("addr", "add", f"{HERE}/30", "dev", wires[0])
            ip("link", "set", wires[0], "up")
            ip("-n", name, "addr", "add", f"{THERE}/30", "dev", wires[1])
            ip("-n", name, "link", "set", wires[1], "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace here: {error.stderr.decode().strip()}")
        yield name


def get(namespace: str, port: str, path: str, *words: str) -> tuple[int, str]:
    """One call from there."""
    command = ["ip", "netns", "exec", namespace, "curl", "-s", "-m", "30", "-w", "\n%{http_code}", *words, f"http://{HERE}:{port}{path}"]
    body, _, code = subprocess.run(command, check=True, capture_output=True, text=True).stdout.rpartition("\n")
    return int(code), body


POST = ("-X", "POST", "-H", "Content-Type: application/json", "-d", "{}")
CALLS = (
    ("/ui/api/models", ()),
    ("/ui/api/memory", ()),
    ("/ui/api/requests/0", ()),
    ("/ui/api/traces/1", ()),
    ("/ui/api/v2/models/simple", ()),
    ("/ui/api/v2/models/simple/infer", POST),
    ("/ui/api/v2/repository/models/simple/unload", POST),
)


def test_at_the_metrics_port_it_sees_the_metrics_and_calls_nothing(launcher, another_host):
    if launcher.oracle:
        pytest.skip("2.51 has no page")
    flags = ["--metrics-address=0.0.0.0", "--model-control-mode=explicit", "--load-model=*"]
    with launcher.running("other_hosts", *flags, repository=launcher.copy_of("other_hosts", "simple")) as server:
        port = server.metrics.rpartition(":")[2]
        for path, words in CALLS:
            code, body = get(another_host, port, path, *words)
            assert code == 403 and f"address {THERE} sees the metrics" in body, (path, code, body)
        code, body = get(another_host, port, "/ui/api/visitor")
        assert code == 200 and not json.loads(body)["may_call"]
        assert get(another_host, port, "/")[0] == 200
        code, body = get(another_host, port, "/metrics")
        assert code == 200 and 'nerite_model_ready{model="simple",version="1"} 1' in body


def test_at_a_port_of_the_pages_own_it_calls_and_sees_no_memory_of_others(launcher, another_host):
    if launcher.oracle:
        pytest.skip("2.51 has no page")
    [port] = servers.free_ports(1)
    flags = ["--ui-address=0.0.0.0", f"--ui-port={port}", "--metrics-address=0.0.0.0"]
    with launcher.running("other_hosts_own", *flags, repository=launcher.copy_of("other_hosts_own", "simple")) as server:
        assert get(another_host, str(port), "/ui/api/v2/models/simple")[0] == 200
        code, body = get(another_host, str(port), "/ui/api/memory")
        report = json.loads(body)
        assert code == 200 and report["seen_by"] == f"address {THERE}" and not report["is_operator"]
        assert report["regions"] == report["sessions"] == report["leases"] == [] and "pools" not in report
        # The metrics port has no page then.
        assert get(another_host, server.metrics.rpartition(":")[2], "/ui/api/v2/models/simple") == (200, "")
