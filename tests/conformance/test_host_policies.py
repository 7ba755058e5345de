"""Do instances run on the cores of their host policy, and does their memory lie on its node?"""

import ctypes
import os
import pathlib
import platform

import catalogue
import numpy as np
import pytest
from batching_setup import serving
from clients import fp32, http_call, open_client

# Answers with the cores that it may use, one after the other.
CORES = '''\
import os

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        cores = numpy.array(sorted(os.sched_getaffinity(0)), dtype=numpy.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", cores)]) for _ in requests]
'''

# Answers with 1 if the new memory of its process lies on node 0 by choice.
NODE = '''\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        with open("/proc/self/numa_maps") as maps:
            chosen = numpy.array([any(" prefer:0 " in line for line in maps)], dtype=numpy.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", chosen)]) for _ in requests]
'''

OWN = sorted(os.sched_getaffinity(0))


def group(policy: str = "") -> str:
    named = f'host_policy: "{policy}"' if policy else ""
    return f"instance_group [ {{ count: 1 kind: KIND_CPU {named} }} ]\n"


def probe(name: str, source: str, policy: str = "") -> catalogue.Model:
    return catalogue.Model(
        name, "python", (catalogue.Tensor("INPUT0", "FP32", (-1,)),), (catalogue.Tensor("OUTPUT0", "FP32", (-1,)),),
        source=source, extra=group(policy),
    )  # fmt: skip


def put(launcher, repository, model: catalogue.Model) -> None:
    folder = repository / model.name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(model.source)
    (folder.parent / "config.pbtxt").write_text(catalogue.config_text(model, 'backend: "python"', {}))


def cores(client, model: str) -> list[int]:
    output = client.infer(model, [fp32("INPUT0", [1])]).outputs["OUTPUT0"]
    return [int(core) for core in np.frombuffer(output.raw, np.float32)]


@pytest.mark.parametrize(
    ("policy", "flag", "expected"),
    [
        ("first", f"first,cpu-cores={OWN[0]}-{OWN[0]}", OWN[:1]),
        ("last", f"last,cpu-cores={OWN[-1]}-{OWN[-1]}", OWN[-1:]),
        ("", f"cpu,cpu-cores={OWN[0]}-{OWN[0]}", OWN[:1]),
        ("other", f"first,cpu-cores={OWN[0]}-{OWN[0]}", OWN),
    ],
)
def test_a_python_model_runs_on_the_cores_of_its_policy(launcher, policy, flag, expected):
    repository = launcher.copy_of(f"policy_{policy or 'cpu'}")
    put(launcher, repository, probe("cores", CORES, policy))
    with launcher.running("policies", f"--host-policy={flag}", repository=repository) as server:
        with open_client("http", server) as client:
            assert cores(client, "cores") == expected


def may_choose_nodes() -> bool:
    """Whether this system has NUMA nodes, and lets a process choose one: containers often do not."""
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = {"x86_64": 239, "aarch64": 236}
    mode = ctypes.c_int()
    result = libc.syscall(numbers.get(platform.machine(), -1), ctypes.byref(mode), None, ctypes.c_ulong(0), None, ctypes.c_ulong(0))
    return result == 0 and pathlib.Path("/sys/devices/system/node/node0").exists()


@pytest.mark.skipif(not may_choose_nodes(), reason="this system has no NUMA nodes, or lets nobody choose one")
def test_a_python_models_memory_lies_on_the_node_of_its_policy(launcher):
    if launcher.oracle:
        pytest.skip("2.51 binds the memory, where nerite prefers the node")
    repository = launcher.copy_of("policy_node")
    put(launcher, repository, probe("chosen", NODE, "near"))
    put(launcher, repository, probe("left", NODE))
    with launcher.running("policy_node", "--host-policy=near,numa-node=0", repository=repository) as server:
        with open_client("http", server) as client:
            assert cores(client, "chosen") == [1]
            assert cores(client, "left") == [0]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_of_a_policy_answers_as_any_other(launcher, protocol):
    model = catalogue.identity("on_one", ("FP32", (-1,)), max_batch=8, extra=group("first"))
    with serving(launcher, "on_one", model, flags=[f"--host-policy=first,cpu-cores={OWN[0]}-{OWN[0]}"]) as server:
        with open_client(protocol, server) as client:
            for number in range(20):
                given = fp32("INPUT0", [[number]])
                assert client.infer("on_one", [given]).outputs["OUTPUT0"].raw == given.raw


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("cpu-cores=abc", "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got abc"),
        ("cpu-cores=1", "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 1"),
        ("cpu-cores=0,1", "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 0"),
        ("cpu-cores=1000-1001", "Unable to set NUMA thread affinity: "),
    ],
)
def test_a_model_whose_policy_cannot_be_is_refused(launcher, setting, text):
    model = catalogue.identity("refused", ("FP32", (-1,)), max_batch=8, extra=group("p"))
    flags = [f"--host-policy=p,{setting}", "--exit-on-error=false"]
    with serving(launcher, "policy_refused", model, flags=flags) as server:
        index = http_call(server.http, "POST", "/v2/repository/index").ok().json
        assert text in index[0]["reason"]
