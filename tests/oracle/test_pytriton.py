"""Does PyTriton, NVIDIA's own package, run with this server in the place of its `tritonserver`?"""

import json
import os
import subprocess
import sysconfig
import tempfile

import pytest
import servers
import triton

PROGRAMS = servers.ROOT / "tests" / "programs"
SUM = {"add": [[2], [2]], "sub": [[0], [0]]}
# The examples of PyTriton's repository for numpy models, by their folders, and what each of them is answered. `tests/programs/pytriton_examples.py` has
# their counterparts. The others are left out:
# - These need another framework than numpy, most of them with a GPU or a model to download: dali_resnet101_pytorch, fastertransformer_gpt_multinode,
#   huggingface_bart_pytorch, huggingface_bert_jax, huggingface_dialogpt_streaming_pytorch, huggingface_opt_multinode_jax, huggingface_resnet_pytorch,
#   huggingface_stable_diffusion, linear_cupy, linear_cupy_notebook, linear_random_pytorch, mlp_random_tensorflow2, multi_instance_linear_pytorch,
#   multi_instance_resnet50_pytorch, nemo_megatron_gpt_multinode, online_learning_mnist, perf_analyzer (BART), tensorrt_llm, vllm.
# - add_sub_vertex_ai is add_sub_python behind the endpoint of Vertex AI, whose flags this server refuses (docs/from-triton.md).
EXAMPLES = {
    "add_sub_notebook": [SUM, {"add": [[4], [4]], "sub": [[0], [0]]}],
    "add_sub_python": SUM,
    "add_sub_python_with_optional": [
        {"add": [[4], [4]], "sub": [[2], [2]]}, {"add": [[6], [6]], "sub": [[4], [4]]},
        {"add": [[7], [7]], "sub": [[5], [5]]}, {"add": [[9], [9]], "sub": [[7], [7]]},
    ],
    "identity_python": {"OUTPUT_1": [[0.25, 0.5, 0.75, 0.125]] * 4, "OUTPUT_2": ["\xff\0\0\0"] * 4},
    "multiple_models_python": [{"product": [[2], [2]]}, {"product": [[4], [4]]}],
    "simple_python_remote_mode": [{"add": [[3], [5]], "sub": [[-1], [-1]]}, {"mul": [[2], [6]]}, {"power": [[1], [8]]}],
    "use_parameters_and_headers": {"scaled_add": [[1], [1]], "scaled_sub": [[2], [2]]},
}  # fmt: skip
# Starts of a program whose server finds a port that is in use.
STARTS_MAX = 3


def run(launcher, name: str, *words: str) -> tuple[object, str]:
    """The results of a program of PyTriton, and all that it and its server print."""
    if any(launcher.urls):
        pytest.skip("starts a server itself")
    if not triton.is_installed():
        pytest.skip("Triton is not installed: cargo xtask oracle")
    program = triton.site_packages() / "pytriton" / "tritonserver" / "bin" / "tritonserver" if launcher.oracle else servers.nerite_binary()
    # The backend's process loads libpython, which must be that of the interpreter.
    variables = os.environ | {"LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR") or ""}
    for _ in range(STARTS_MAX):
        # The path is short, because PyTriton makes Unix sockets below it, and a socket's path has 107 bytes at most.
        with tempfile.TemporaryDirectory() as place:
            command = [triton.environment_path() / "bin" / "python", PROGRAMS / name, place, program, *map(str, servers.free_ports(3)), *words]
            ran = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        # PyTriton takes seconds before its server binds the ports, and another test may have taken one by then.
        if ran.returncode == 0 or "already in use" not in ran.stdout:
            break
    assert ran.returncode == 0, ran.stdout[-6000:]
    return json.loads(ran.stdout.splitlines()[-1]), ran.stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_pytriton_are_answered(launcher, example):
    found, _ = run(launcher, "pytriton_examples.py", example)
    expected = EXAMPLES[example]
    if example != "add_sub_notebook":
        # That one's clients use HTTP only. The headers of gRPC are not forwarded there.
        protocols = ["http"] if example == "use_parameters_and_headers" else ["http", "grpc"]
        expected = dict.fromkeys(protocols, expected)
    assert found == expected


def test_functions_of_pytriton_are_served(launcher):
    found, printed = run(launcher, "pytriton_functions.py")
    each = {"add": [[2], [2]], "sub": [[0], [0]], "max_batch_size": 128, "upper": ["A", "BC"], "refused": True,
            "scaled": [[2 * at] * 3 for at in range(4)], "instances": [0, 1], "reversed": [3, 2, 1], "grouped": [2, 1, 2],
            "present": [[1, 1, 1], [2, 2, 2]]}  # fmt: skip
    assert found == {"http": each, "grpc": each, "counted": [0, 1, 2], "counted again": [0, 1, 2], "future": [[2]]}
    if not launcher.oracle:
        # The model is served by the backend out of the wheel. What other processes print may divide that line of the log.
        assert "libtriton_python.so" in printed
