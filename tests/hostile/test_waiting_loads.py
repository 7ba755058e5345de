"""Do loads that wait for runs of instances that they took away delay only their own client?"""

import concurrent.futures
import os
import select
import socket

import pytest
from clients import Answer, fp32, http_call, open_client
from python_setup import PATIENT, Gates
from strangers import close_all, connections_of
from users import as_user

GREEDY, OTHER = 4_200_000 + os.getpid(), 4_300_000 + os.getpid()
# The most loads and unloads of one client that are under way.
CALLS_MAX = 512
PATIENCE_S = 60
MODEL = "gated"
# Waits at the gate that its input numbers, and passes the input on.
GATED = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        for value in values:
            pass_gate(int(value[0]))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]) for value in values]
"""


def config(instances: int) -> str:
    tensors = "".join(f'{way} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 1 ] }}\n' for way, name in (("input", "IN"), ("output", "OUT")))
    return f'backend: "python"\n{tensors}instance_group {{ count: {instances} kind: KIND_CPU }}\n'


@pytest.fixture
def server(launcher, tmp_path):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 has no such bounds")
    if os.geteuid() != 0:
        pytest.skip("only root can be other users")
    repository = launcher.copy_of("waiting_loads", "simple")
    gates = Gates(tmp_path / "gates")
    (repository / MODEL / "1").mkdir(parents=True)
    (repository / MODEL / "1" / "model.py").write_text(gates.code + GATED)
    (repository / MODEL / "config.pbtxt").write_text(config(2))
    flags = ["--model-control-mode=explicit", "--load-model=*", "--model-load-thread-count=1"]
    with launcher.running("waiting_loads", PATIENT, *flags, repository=repository) as found:
        found.gates = gates
        yield found


def load(server, user: int, call: str = "load") -> Answer:
    return as_user(user, lambda: http_call(server.http, "POST", f"/v2/repository/models/simple/{call}", {}))


def run(server, gate: int) -> bytes:
    with open_client("grpc", server) as client:
        return client.infer(MODEL, [fp32("IN", [gate])]).outputs["OUT"].raw


def status_of(one: socket.socket) -> bytes:
    with one.makefile("rb") as answer:
        return answer.readline()


def test_loads_that_wait_for_runs_take_only_places_of_their_own_client(server):
    head = f"POST /v2/repository/models/{MODEL}/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, server, gate) for gate in (1, 2)]
        for gate in (1, 2):
            server.gates.wait_for(gate)
        (server.repository / MODEL / "config.pbtxt").write_text(config(1))
        waiting = connections_of(GREEDY, server.http, CALLS_MAX + 1, head.encode())
        try:
            # All places of the client are taken when one of its loads is refused.
            (refused,), _, _ = select.select(waiting, [], [], PATIENCE_S)
            assert status_of(refused) == b"HTTP/1.1 503 Service Unavailable\r\n"
            waiting.remove(refused)
            refused.close()
            assert f"{CALLS_MAX} loads and unloads of " in load(server, GREEDY).error
            for call in ("unload", "load", "load"):
                assert load(server, OTHER, call).ok()
            assert select.select(waiting, [], [], 0)[0] == [] and not any(one.done() for one in runs)
            for gate in (1, 2):
                server.gates.open(gate)
            assert {status_of(one) for one in waiting} == {b"HTTP/1.1 200 OK\r\n"}
            assert load(server, GREEDY).ok()
        finally:
            close_all(waiting)
        assert all(one.result(PATIENCE_S) for one in runs)
