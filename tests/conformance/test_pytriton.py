"""Does PyTriton, NVIDIA's own package, run with this server in the place of its `tritonserver`?

It needs an environment with the wheel nvidia-pytriton 0.7.0 and what that depends on: PYTRITON names it, else the wheel's own of triton.py is taken.
"""

import json
import os
import pathlib
import subprocess
import sysconfig

import pytest
import servers
import triton

EXAMPLES = servers.ROOT / "tests" / "programs" / "pytriton_examples.py"


def environment_of_pytriton() -> pathlib.Path:
    found = pathlib.Path(os.environ.get("PYTRITON", triton.environment_path()))
    if not all(any(found.glob(f"lib/python*/site-packages/{name}")) for name in ("pytriton", "zmq", "tritonclient")):
        pytest.skip("no environment has nvidia-pytriton 0.7.0 and its dependencies: PYTRITON may name one")
    return found


def test_functions_of_pytriton_are_served(launcher, tmp_path):
    if any(launcher.urls):
        pytest.skip("starts a server itself")
    environment = environment_of_pytriton()
    program = triton.site_packages() / "pytriton" / "tritonserver" / "bin" / "tritonserver" if launcher.oracle else servers.nerite_binary()
    # The backend's process loads libpython, which must be that of the interpreter.
    variables = os.environ | {"LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR") or ""}
    command = [environment / "bin" / "python", EXAMPLES, tmp_path, program, *map(str, servers.free_ports(3))]
    ran = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout[-6000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    each = {"add": [[2], [2]], "sub": [[0], [0]], "max_batch_size": 128, "upper": ["A", "BC"], "refused": True,
            "scaled": [[2 * at] * 3 for at in range(4)]}  # fmt: skip
    assert found == {"http": each, "grpc": each, "counted": [0, 1, 2], "future": [[2]]}
    if not launcher.oracle:
        # The model is served by the backend out of the wheel. What other processes print may divide that line of the log.
        assert "libtriton_python.so" in ran.stdout
