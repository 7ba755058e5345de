"""Does each option that a program sets for its server have its effect, and is its misuse refused?

The program calls each function of the library that sets an option, under AddressSanitizer with this server's library.
"""

import json
import os
import re
import subprocess

import pytest
import triton
from compiled_setup import compiled, put
from servers import ROOT, nerite_binary
from test_in_process import FLAGS, WELL, facts, own_library

PROGRAM = ROOT / "tests" / "programs" / "options.c"
PREFIX = "TRITONSERVER_ServerOptions"
SANITIZED = ["-g", "-fsanitize=address"]
# The library keeps its tables until the process ends.
ASAN_OPTIONS = "detect_leaks=0:halt_on_error=1:exitcode=99:handle_segv=0:handle_sigbus=0:handle_abort=0"
# A processor that this process may use.
CORE = min(os.sched_getaffinity(0))
# Options whose effect cannot be seen on a host without GPUs, or that have none in this server.
WITHOUT_VISIBLE_EFFECT = [
    "SetCudaMemoryPoolByteSize|0|1048576", "SetCudaVirtualAddressSize|0|1048576", "SetBufferManagerThreadCount|2", "SetEnablePeerAccess|0",
    "SetModelLoadDeviceLimit|2|0|0.5", "SetMinSupportedComputeCapability|6", "SetModelLoadThreadCount|2",
]  # fmt: skip


class Program:
    """The program with one library, and the models that its servers may have."""

    def __init__(self, scratch, is_oracle: bool) -> None:
        self.is_oracle, self.scratch, self.path = is_oracle, scratch, scratch / "options"
        self.backends, self.repository, self.more = scratch / "backends", scratch / "models", scratch / "more"
        self.caches = triton.site_packages() / "pytriton" / "tritonserver" / "caches" if is_oracle else scratch
        if is_oracle:
            library = next((triton.site_packages() / "nvidia_pytriton.libs").glob("libtritonserver-*.so"))
            extra, self.environment = [], triton.environment()
        else:
            library, extra = own_library(), SANITIZED
            self.environment = os.environ | {"NERITE_PROGRAM": str(nerite_binary()), "ASAN_OPTIONS": ASAN_OPTIONS}
        self.library = library
        link = [f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
        subprocess.run(["cc", *FLAGS, *extra, str(PROGRAM), "-o", str(self.path), *link, "-lpthread"], check=True)
        compiled(self.backends / "sample" / "libtriton_sample.so")
        put(self.repository, "add", "add_sub", pairs=2)
        put(self.repository, "other")
        folder = put(self.repository, "named")
        (folder / "configs").mkdir()
        (folder / "configs" / "batched.pbtxt").write_text((folder / "config.pbtxt").read_text() + "max_batch_size: 6\n")
        limited = 'instance_group [ { kind: KIND_CPU rate_limiter { resources [ { name: "R1" count: 4 } ] } } ]'
        put(self.repository, "limited", more=limited)
        put(self.repository, "broken", "refuse_model")
        incomplete = self.repository / "incomplete"
        (incomplete / "1").mkdir(parents=True)
        (incomplete / "config.pbtxt").write_text('backend: "sample"\n')
        put(self.more, "add", "add_sub", pairs=2)

    def run(self, *words: str) -> dict[str, list[str]]:
        done = subprocess.run([str(self.path), *words], capture_output=True, text=True, timeout=120, env=self.environment)
        assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        self.log = done.stderr
        return facts(done.stdout.splitlines())

    def serve(self, model: str, *calls: str, startup: tuple[str, ...] = ("add",), metric: str = "") -> dict[str, list[str]]:
        """What can be seen of a server with these options, or why it is not made."""
        usual = [f"SetModelRepositoryPath|{self.repository}", f"SetBackendDirectory|{self.backends}", "SetModelControlMode|2", "SetExitTimeout|20"]
        return self.run("serve", model, metric, *usual, *(f"SetStartupModel|{name}" for name in startup), *calls)

    def served(self, model: str, *calls: str, startup: tuple[str, ...] = ("add",), metric: str = "") -> dict[str, list[str]]:
        """The same, of a server that is made, and whose options are all taken."""
        found = self.serve(model, *calls, startup=startup, metric=metric)
        assert found["start"] == [WELL], found["start"]
        assert {call: set(found[call.split("|")[0]]) for call in calls} == {call: {WELL} for call in calls}
        return found


@pytest.fixture(scope="module")
def program(request, tmp_path_factory) -> Program:
    return Program(tmp_path_factory.mktemp("options"), request.config.getoption("--oracle"))


def states(found: dict[str, list[str]]) -> dict[str, str]:
    """Model → its state, of those that were asked for."""
    return {model["name"]: model["state"] for model in json.loads(found["index"][0]) if "state" in model}


def test_the_program_calls_every_function_that_sets_an_option(program):
    listed = subprocess.run(["nm", "-D", "--defined-only", program.library], capture_output=True, text=True, check=True).stdout
    exported = set(re.findall(rf"\b{PREFIX}(\w+)", listed)) - {"New", "Delete"}
    # Triton 2.51 does not have it, so a program of its own calls it.
    assert set(program.run("names")) == exported - {"SetLogCallback"} and len(exported) == (39 if program.is_oracle else 40)


def test_the_server_is_named_and_has_the_models_of_its_start(program):
    found = program.served("other", "SetServerId|mine")
    assert json.loads(found["metadata"][0])["name"] == "mine"
    assert states(found) == {"add": "READY"} and found["load"] == [WELL] and found["is ready"] == [WELL, "1"]


def test_options_without_a_visible_effect_are_accepted(program):
    directories = ["SetCacheDirectory", "SetRepoAgentDirectory"]
    found = program.served("add", *WITHOUT_VISIBLE_EFFECT, *(f"{name}|{program.scratch}" for name in directories))
    assert states(found) == {"add": "READY"}


def test_configurations_are_as_they_are_or_completed(program):
    """The backend completes a configuration without tensors."""
    inputs = [json.loads(program.served("incomplete", f"SetStrictModelConfig|{is_strict}", startup=("incomplete",))["config"][0]).get("input")
              for is_strict in (1, 0)]  # fmt: skip
    assert not inputs[0] and [one["name"] for one in inputs[1]] == ["IN"]


@pytest.mark.parametrize(("name", "rows"), [("", 0), ("batched", 6), ("none", 0)])
def test_a_configuration_has_the_name_that_the_program_gives(program, name, rows):
    found = program.served("named", f"SetModelConfigName|{name}", startup=("named",))
    assert json.loads(found["config"][0]).get("max_batch_size", 0) == rows


@pytest.mark.parametrize(("calls", "limit"), [
    (["SetRateLimiterMode|1", "AddRateLimiterResource|R1|3|-1"], 3), (["SetRateLimiterMode|1", "AddRateLimiterResource|R1|3|0"], 3),
    (["SetRateLimiterMode|1", "AddRateLimiterResource|R1|4|-1"], None), (["SetRateLimiterMode|0", "AddRateLimiterResource|R1|3|-1"], None),
])  # fmt: skip
def test_a_model_that_needs_more_than_the_resources_is_refused(program, calls, limit):
    (load,) = program.served("limited", *calls)["load"]
    assert load == WELL if limit is None else f'"R1" is limited to {limit} which will prevent scheduling' in load


def test_what_fails_at_the_start_ends_it_or_does_not(program):
    both = ("add", "broken")
    assert program.serve("add", "SetModelControlMode|0")["start"] == ["Internal: failed to load all models"]
    for is_strict in (0, 1):
        found = program.served("add", "SetExitOnError|0", f"SetStrictReadiness|{is_strict}", startup=both)
        assert states(found) == {"add": "READY", "broken": "UNAVAILABLE"} and found["is ready"] == [WELL, str(1 - is_strict)]


def test_a_load_is_tried_again(program):
    tries = {}
    for count in (0, 2):
        program.served("broken", f"SetModelLoadRetryCount|{count}", "SetLogVerbose|1")
        tries[count] = program.log.count("the model is refused on purpose")
    assert tries[2] > tries[0] > 0, tries


def test_models_of_one_name_need_namespaces(program):
    more = f"SetModelRepositoryPath|{program.more}"
    indexes = [json.loads(program.served("other", more, f"SetModelNamespacing|{is_on}", startup=("other",))["index"][0]) for is_on in (0, 1)]
    without, with_namespaces = ([model for model in index if model["name"] == "add"] for index in indexes)
    assert len(with_namespaces) == 2 and [model["reason"] for model in without] == ["model appears in two or more repositories"]


def logged(program, *calls: str) -> dict[str, str]:
    """The table of options that a server's log begins with."""
    program.served("add", *calls, "SetLogInfo|1")
    return dict(re.findall(r"^\| (\w+)\s+\| (\S+)", program.log, re.MULTILINE))


@pytest.mark.parametrize(("call", "is_enabled"), [
    ('SetCacheConfig|local|{"size": "1048576"}', "1"), ("SetResponseCacheByteSize|1048576", "1"), ("SetServerId|mine", "0"),
])  # fmt: skip
def test_responses_are_cached(program, call, is_enabled):
    assert logged(program, call, f"SetCacheDirectory|{program.caches}")["cache_enabled"] == is_enabled


def test_the_log_shows_the_options(program):
    found = logged(program, "SetPinnedMemoryPoolByteSize|1048576", "SetServerId|mine", "SetRateLimiterMode|1", "SetStrictReadiness|0")
    expected = {"pinned_memory_pool_byte_size": "1048576", "server_id": "mine", "rate_limit": "EXEC_COUNT", "strict_readiness": "0",
                "model_control_mode": "MODE_EXPLICIT", "exit_timeout": "20", "strict_model_config": "1"}  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(("calls", "has", "lacks"), [
    (["SetLogInfo|1"], "I", ""), (["SetLogInfo|0"], "", "I"), (["SetLogInfo|0", "SetLogVerbose|1"], "", ""),
    (["SetLogError|1"], "E", ""), (["SetLogError|0"], "", "E"), (["SetLogWarn|0"], "", "W"),
])  # fmt: skip
def test_the_log_has_the_levels_that_the_program_says(program, tmp_path, calls, has, lacks):
    file = tmp_path / "log"
    program.served("broken", f"SetLogFile|{file}", "SetLogFormat|0", *calls)
    levels = set(re.findall(r"^([IWE])\d{4} ", file.read_text(), re.MULTILINE))
    assert set(has) <= levels and not set(lacks) & levels, levels


@pytest.mark.parametrize(("format", "begins"), [(0, r"I\d{4} \d\d:\d\d:\d\d"), (1, r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z I")])
def test_the_log_has_the_format_that_the_program_says(program, tmp_path, format, begins):
    file = tmp_path / "log"
    program.served("add", f"SetLogFile|{file}", f"SetLogFormat|{format}", "SetLogInfo|1")
    assert re.search(rf"^{begins}", file.read_text(), re.MULTILINE), file.read_text()[:500]


def test_metrics_are_those_that_the_program_wants(program):
    def page(*calls: str, metric: str = "") -> str:
        return "\n".join(program.served("add", "SetMetricsInterval|10", *calls, metric=metric)["metric"])

    whole = page("SetMetrics|1", "SetCpuMetrics|1", "SetGpuMetrics|0", metric="nv_cpu_utilization ")
    assert "nv_inference_request_success{" in whole and "nv_cpu_utilization " in whole and "nv_gpu" not in whole
    summaries = page("SetCpuMetrics|0", "SetMetricsConfig||summary_latencies|true", "SetMetricsConfig||counter_latencies|false")
    assert "nv_cpu" not in summaries and "nv_inference_request_duration_us" not in summaries and "nv_inference_request_summary_us" in summaries
    # As in Triton, the metrics of models can be had all the same.
    few = page("SetMetrics|0", "SetCpuMetrics|1")
    assert "nv_cpu" not in few and "nv_inference_request_success{" in few


def test_a_backend_gets_its_settings(program):
    program.served("add", "SetBackendConfig|sample|mine|7", "SetBackendConfig||all|8", "SetLogInfo|1")
    (config,) = re.findall(r"backend sample is told (\{.*\})", program.log)
    config = config.replace("\\", "")
    assert '"mine":"7"' in config and '"all":"8"' in config


def test_instances_have_their_host_policy(program):
    usable, unusable = ("SetHostPolicy|cpu|numa-node|0", f"SetHostPolicy|cpu|cpu-cores|{CORE}-{CORE}"), "SetHostPolicy|cpu|cpu-cores|x"
    assert program.served("add", *usable)["load"] == [WELL]
    (refused,) = program.served("add", unusable, startup=())["load"]
    assert "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got x" in refused


def differs(*row: str, why: str = "2.51 takes it"):
    return pytest.param(*row, marks=pytest.mark.triton_differs(why, run=False))


REFUSED = [
    ("SetModelControlMode|9", "Invalid argument: unknown control mode '9'"),
    ("SetRateLimiterMode|9", "Invalid argument: unknown rate limit mode '9'"),
    ("SetHostPolicy|cpu|bogus|1", "Unsupported: Unsupported host policy setting 'bogus' is specified"),
    differs("SetLogFormat|9", "Invalid argument: unknown log format '9'"),
    differs("SetModelLoadDeviceLimit|1|0|0.5", "Invalid argument: given device kind '1' is not supported", why="2.51 has other words"),
    differs("SetCacheConfig|local|{", "Invalid argument: failed to parse the configuration of cache 'local'"),
    differs('SetCacheConfig|local|{"bytes": 5}', "Invalid argument: the configuration of cache 'local' has no 'size'"),
    differs("AddRateLimiterResource|a:b|1|0", "Invalid argument: the resource 'a:b' has a colon in its name"),
    differs("SetBackendConfig|a,b|c|1", "Invalid argument: the backend 'a,b' has a comma in its name"),
]


@pytest.mark.parametrize(("call", "why"), REFUSED)
def test_a_value_that_is_none_is_refused_by_its_function(program, call, why):
    found = program.serve("add", call)
    assert found[call.split("|")[0]][-1].startswith(why) and found["start"] == [WELL]


REFUSED_AT_THE_START = [
    ('SetCacheConfig|other|{"size": 5}', "'libtritoncache_other.so'"), ("SetModelRepositoryPath|/nowhere", "/nowhere"),
    ("SetStartupModel|none", "failed to load"),
    differs("SetMinSupportedComputeCapability|nan", "Got NaN"), differs("SetExitTimeout|4294967295", "Got 4294967295"),
    differs("SetLogFile|/nowhere/log", "/nowhere/log", why="2.51 opens the file in the function itself"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "names"), REFUSED_AT_THE_START)
def test_a_value_that_its_flag_refuses_makes_no_server(program, call, names):
    found = program.serve("add", call)
    assert found[call.split("|")[0]][-1] == WELL and names in found["start"][0]


@pytest.mark.triton_differs("2.51 takes pointers at their word", run=False)
def test_misuse_of_each_function_is_refused(program):
    found = program.run("misuse")
    names = set(program.run("names"))
    for how in ("null", "deleted", "other"):
        # NULL is nothing to delete, as in Triton.
        for name in names if how == "null" else names | {"Delete"}:
            assert found[f"{how} {name}"][0].startswith("Invalid argument: "), (how, name, found[f"{how} {name}"])
    assert found["null Delete"] == [WELL]
    assert found["null New"][0].startswith("Invalid argument: ")
    without = {what: said for what, said in found.items() if what.startswith("no text")}
    # Without a name, a setting of metrics is for all of them.
    assert {what: said for what, said in without.items() if said != ["Invalid argument: a text is NULL"]} == {"no text 0 SetMetricsConfig": [WELL]}
    # Each text of each function.
    assert len(without) == 20
