"""How do tests start a server with a response cache, and see what it did?"""

import contextlib

import catalogue
from batching_setup import put
from clients import http_call

CACHE = "response_cache { enable: true }\n"
SIZE = 8 << 20


def caching(name: str, settings: str = "", **more) -> catalogue.Model:
    """An identity model whose responses are kept."""
    more = {"max_batch": 8, "inputs": (("FP32", (-1,)),)} | more
    inputs = more.pop("inputs")
    return catalogue.identity(name, *inputs, extra=CACHE + settings, **more)


def ensemble(name: str, step: str) -> str:
    """The configuration of an ensemble of one step whose responses are kept."""
    return f"""\
name: "{name}"
platform: "ensemble"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
{CACHE}
ensemble_scheduling {{ step [ {{
  model_name: "{step}" model_version: -1
  input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }}
}} ] }}
"""


@contextlib.contextmanager
def serving(launcher, name: str, *models: catalogue.Model, flags=(), ensembles=(), size: int = SIZE):
    repository = launcher.copy_of(name)
    for model in models:
        put(launcher, repository, model)
    for one, step in ensembles:
        (repository / one / "1").mkdir(parents=True)
        (repository / one / "config.pbtxt").write_text(ensemble(one, step))
    cache = [f"--cache-config=local,size={size}"] if size else []
    with launcher.running(name, *cache, "--metrics-interval-ms=100", *flags, repository=repository) as found:
        yield found


def samples(server) -> dict[str, float]:
    """Every sample of the metrics by its name and labels."""
    lines = http_call(server.metrics, "GET", "/metrics").ok().body.decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line and line[0] != "#"}
