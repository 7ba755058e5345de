"""Do instances run on the cores of their host policy?"""

import os

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

OWN = sorted(os.sched_getaffinity(0))


def group(policy: str = "") -> str:
    named = f'host_policy: "{policy}"' if policy else ""
    return f"instance_group [ {{ count: 1 kind: KIND_CPU {named} }} ]\n"


def asking_cores(name: str, policy: str = "") -> catalogue.Model:
    return catalogue.Model(
        name, "python", (catalogue.Tensor("INPUT0", "FP32", (-1,)),), (catalogue.Tensor("OUTPUT0", "FP32", (-1,)),),
        source=CORES, extra=group(policy),
    )  # fmt: skip


def put(launcher, repository, model: catalogue.Model) -> None:
    folder = repository / model.name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(CORES)
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
    put(launcher, repository, asking_cores("cores", policy))
    with launcher.running("policies", f"--host-policy={flag}", repository=repository) as server:
        with open_client("http", server) as client:
            assert cores(client, "cores") == expected


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
