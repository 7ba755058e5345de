"""How many copies of a model's weights do its instances keep?"""

import concurrent.futures
import sys
import time

import numpy as np
import pytest
import servers
from clients import fp32, open_client

sys.path.insert(0, str(servers.ROOT / "tests" / "models"))

import residual_net  # noqa: E402

INSTANCES = (1, 2, 4)
# What one more instance may add: a tenth of the weights.
SHARE = 0.1
SETTLE_S = 8


@pytest.fixture(scope="module")
def net(launcher, tmp_path_factory):
    """A net of the size of ResNet-50, and the bytes of its weights."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 here has no ONNX backend, and the memory is that of a server of its own")
    path = tmp_path_factory.mktemp("net") / "model.onnx"
    return path, residual_net.write(path)


def private_bytes(pid: int) -> int:
    """What the process wrote and keeps; files that it maps are not counted."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as facts:
        found = dict(line.split(":", 1) for line in facts)
    return int(found["RssAnon"].split()[0]) * 1024


def settled_bytes(pid: int) -> int:
    """The least of some seconds: what a load left is given back to the system a little later."""
    least = private_bytes(pid)
    for _ in range(SETTLE_S * 4):
        time.sleep(0.25)
        least = min(least, private_bytes(pid))
    return least


def served(launcher, net, folder, engine: str, instances: int) -> tuple[int, list[bytes]]:
    """Private bytes of a server after requests that kept all instances busy, and the answers."""
    repository = folder / f"{engine}_{instances}"
    version = repository / "residual" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").symlink_to(net)
    config = f'backend: "onnxruntime" instance_group {{ kind: KIND_CPU count: {instances} }}'
    # As many threads for each, so that only the number of instances differs.
    config += ' parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
    (repository / "residual" / "config.pbtxt").write_text(config)
    library = servers.onnxruntime_flag() if engine == "onnxruntime" else "--onnxruntime-library=none"
    picture = fp32("INPUT0", np.linspace(-1, 1, 3 * residual_net.SIDE**2), [1, 3, residual_net.SIDE, residual_net.SIDE])
    with launcher.running(f"weights_{engine}_{instances}", library, repository=repository) as server:

        def infer(_) -> bytes:
            with open_client("http", server) as client:
                return client.infer("residual", [picture]).outputs["OUTPUT0"].raw

        with concurrent.futures.ThreadPoolExecutor(2 * INSTANCES[-1]) as pool:
            answers = list(pool.map(infer, range(6 * INSTANCES[-1])))
        return settled_bytes(server.pid), answers


@pytest.mark.parametrize("engine", ["onnxruntime", "embedded"])
def test_instances_share_one_copy_of_the_weights(launcher, net, tmp_path, engine, record_property):
    path, weights = net
    found, answers = {}, set()
    for instances in INSTANCES:
        found[instances], given = served(launcher, path, tmp_path, engine, instances)
        answers.update(given)
    print(f"{engine}: weights {weights:,}", {n: f"{size:,}" for n, size in found.items()})
    record_property("private_bytes", found)
    assert len(answers) == 1, "every instance gives the same"
    assert found[1] > weights, "the weights are private memory: the figures below count them"
    for instances in INSTANCES[1:]:
        grown = found[instances] - found[1]
        assert grown <= SHARE * weights * (instances - 1), f"{instances} instances: {grown:,} bytes more, weights {weights:,}"
