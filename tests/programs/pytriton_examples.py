"""Are PyTriton's own examples for numpy models answered by another server in the place of its `tritonserver`?

    python tests/programs/pytriton_examples.py FOLDER PROGRAM HTTP_PORT GRPC_PORT METRICS_PORT EXAMPLE

Each example here is written anew and named after the folder of examples/ in PyTriton's repository that it stands for. It has the same models (names,
tensors, configuration) and makes the same requests. As there, each server is a process of its own, which serves until SIGINT. The last line of the output
has the answers as JSON.
"""

import contextlib
import json
import pathlib
import signal
import subprocess
import sys

import numpy as np
from pytriton.client import ModelClient
from pytriton.decorators import batch, fill_optionals, first_value
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton, Triton, TritonConfig, TritonSecurityConfig
from pytriton_functions import replace_server

# The servers of `simple_python_remote_mode` share it: since 0.7.0 only who has it may load models.
TOKEN = "of-the-examples"


def numbers(name=None, *, is_optional=False, dtype=np.float32):
    return Tensor(name=name, dtype=dtype, shape=(-1,), optional=is_optional)


def bind_pair(triton, model, function, *outputs, strict=False):
    """A model of two inputs without names of their own."""
    config = ModelConfig(max_batch_size=128)
    triton.bind(model, function, [numbers(), numbers()], [numbers(name) for name in outputs], config=config, strict=strict)


@batch
def add_sub(**inputs):
    left, right = inputs.values()
    return {"add": left + right, "sub": left - right}


@batch
def scaled_add_sub(**inputs):
    left, right = inputs.values()
    return {"add": 2 * (left + right), "sub": 3 * (left - right)}


@fill_optionals(t=np.float32([2]))
@batch
@first_value("w")
def weighted(a, b, t, w=1):
    return {"add": a * w + b + t, "sub": a * w - b + t}


@batch
def identity(INPUT_1, INPUT_2):  # noqa: N803
    return [INPUT_1, INPUT_2]


@batch
def twice(multiplicand):
    return [multiplicand * np.float32(2)]


@batch
def four_times(multiplicand):
    return [multiplicand * np.float32(4)]


@batch
def multiply(**inputs):
    return [np.multiply(*inputs.values())]


@batch
def power(**inputs):
    return [np.power(*inputs.values())]


def by_parameters(requests):
    """A header comes as a parameter of the request, as the server's flag says."""
    for request in requests:
        left, right = request.values()
        divisor, factor = (float(request.parameters[name]) for name in ("header_divisor", "parameter_multiplier"))
        yield {"scaled_add": (left + right) / divisor, "scaled_sub": (left - right) * factor}


def bind_add_sub(triton):
    bind_pair(triton, "AddSub", add_sub, "add", "sub", strict=True)


def bind_scaled_add_sub(triton):
    bind_pair(triton, "AddSub", scaled_add_sub, "add", "sub")


def bind_optional(triton):
    inputs = [numbers("a"), numbers("b"), numbers("t", is_optional=True), numbers("w", is_optional=True)]
    triton.bind("AddSub", weighted, inputs, [numbers("add"), numbers("sub")], config=ModelConfig(max_batch_size=128))


def bind_identity(triton):
    pair = [numbers(dtype=np.float64), Tensor(dtype=object, shape=(1,))]
    triton.bind("Identity", identity, pair, pair, config=ModelConfig(max_batch_size=128))


def bind_multiplications(triton):
    for model, function in (("Multiply2", twice), ("Multiply4", four_times)):
        triton.bind(model, function, [numbers("multiplicand")], [numbers("product")], config=ModelConfig(max_batch_size=8), strict=True)


def bind_by_parameters(triton):
    bind_pair(triton, "ParamsAndHeaders", lambda requests: list(by_parameters(requests)), "scaled_add", "scaled_sub", strict=True)


def bind_loose_add_sub(triton):
    bind_pair(triton, "AddSub", add_sub, "add", "sub")


def bind_multiply(triton):
    bind_pair(triton, "Mul", multiply, "mul")


def bind_power(triton):
    bind_pair(triton, "Power", power, "power")


def infer(url, model, *inputs, version=None, **options):
    with ModelClient(url, model, model_version=version, init_timeout_s=60) as client:
        result = client.infer_batch(*inputs, **options)
    return {name: plain(output) for name, output in result.items()}


def plain(output):
    """An output as lists for JSON. Bytes become text of the same code points."""
    return [each.decode("latin-1") for each in output.reshape(-1)] if output.dtype == object else output.tolist()


ONES = np.ones((2, 1), np.float32)


def request_add_sub(url):
    return infer(url, "AddSub", ONES, ONES)


def request_optional(url):
    with_names = infer(url, "AddSub", a=ONES, b=ONES, w=3 * ONES)
    return [request_add_sub(url), with_names, infer(url, "AddSub", ONES, ONES, 5 * ONES), infer(url, "AddSub", ONES, ONES, 5 * ONES, 3 * ONES)]


def request_identity(url):
    fractions = np.array([[0.25, 0.5, 0.75, 0.125]] * 4, np.float64)
    # An array of objects: numpy's own bytes would lose the zeros at the end.
    return infer(url, "Identity", fractions, np.array([[b"\xff\x00\x00\x00"]] * 4, dtype=object))


def request_multiplications(url):
    return [infer(url, "Multiply2", ONES), infer(url, "Multiply4", ONES)]


def request_remote(url):
    left, right = np.float32([[1], [2]]), np.float32([[2], [3]])
    return [infer(url, "AddSub", left, right, version="1"), infer(url, "Mul", left, right), infer(url, "Power", left, right)]


def request_by_parameters(url):
    return infer(url, "ParamsAndHeaders", 2 * ONES, ONES, parameters={"parameter_multiplier": 2}, headers={"header_divisor": 3})


# Example → what binds the models of each of its servers, and what sends the requests. The first server starts PROGRAM. The others load their models
# into it.
EXAMPLES = {
    "add_sub_python": ([bind_add_sub], request_add_sub),
    "add_sub_python_with_optional": ([bind_optional], request_optional),
    "identity_python": ([bind_identity], request_identity),
    "multiple_models_python": ([bind_multiplications], request_multiplications),
    "simple_python_remote_mode": ([bind_loose_add_sub, bind_multiply, bind_power], request_remote),
    "use_parameters_and_headers": ([bind_by_parameters], request_by_parameters),
}
NOTEBOOK = "add_sub_notebook"
# Its server forwards the headers of HTTP requests. Those of gRPC would need another flag.
WITH_HEADERS = "use_parameters_and_headers"


def own_server(folder, http, grpc, metrics, header_pattern=None):
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics, "http_address": "127.0.0.1", "exit_timeout_secs": 10}
    config = TritonConfig(http_header_forward_pattern=header_pattern, **ports)
    return Triton(config=config, workspace=folder / "workspace", security_config=TritonSecurityConfig(access_token=TOKEN))


def serve(folder, program, ports, example, part):
    """One of the servers of an example, until SIGINT."""
    bind = EXAMPLES[example][0][part]
    if part == 0:
        replace_server(folder, program)
        server = own_server(folder, *ports, header_pattern="header.*" if example == WITH_HEADERS else None)
    else:
        server = RemoteTriton(f"127.0.0.1:{ports[0]}", workspace=folder / f"workspace{part}", access_token=TOKEN)
    # The signal may come before `serve` waits for it.
    with contextlib.suppress(KeyboardInterrupt), server as triton:
        bind(triton)
        triton.serve()


@contextlib.contextmanager
def serving(example):
    """The servers of an example, all of which end well."""
    command = [sys.executable, *sys.argv]
    servers = [subprocess.Popen([*command, str(part)]) for part in range(len(EXAMPLES[example][0]))]
    try:
        yield
    finally:
        for server in reversed(servers):
            server.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(60)
            server.kill()
            server.wait()
    codes = [server.returncode for server in servers]
    assert codes == [0] * len(servers), codes


def run_notebook(folder, program, ports):
    """One process, which serves a model, ends the server, and serves another model of that name."""
    replace_server(folder, program)
    for at, bind in enumerate((bind_loose_add_sub, bind_scaled_add_sub)):
        # The notebook runs the first `Triton` again, and its functions are not decorated. Version 0.7.0 runs neither: `stop` removes the program that
        # `run` would start, and a function without `@batch` gets requests.
        triton = own_server(folder / str(at), *ports)
        bind(triton)
        triton.run()
        yield request_add_sub(f"http://127.0.0.1:{ports[0]}")
        triton.stop()


def main():
    folder, program, ports, example = pathlib.Path(sys.argv[1]), sys.argv[2], [int(port) for port in sys.argv[3:6]], sys.argv[6]
    if len(sys.argv) > 7:
        serve(folder, program, ports, example, int(sys.argv[7]))
        return
    if example == NOTEBOOK:
        print(json.dumps(list(run_notebook(folder, program, ports))))
        return
    with serving(example):
        urls = {"http": f"http://127.0.0.1:{ports[0]}"} | ({} if example == WITH_HEADERS else {"grpc": f"grpc://127.0.0.1:{ports[1]}"})
        found = {protocol: EXAMPLES[example][1](url) for protocol, url in urls.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
