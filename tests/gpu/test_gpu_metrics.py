"""Are there Triton's metrics of GPUs, and what if the driver fails or never returns?

Driver and NVML are stand-ins (conformance/gpus.py), which prove nothing of a real device.
"""

import contextlib
import ctypes
import pathlib
import re
import signal
import time

import pytest
from clients import http_call
from gpus import UUIDS, stand_ins

GIB = 1 << 30
FAMILIES = {
    "nv_gpu_utilization": "gauge",
    "nv_gpu_memory_total_bytes": "gauge",
    "nv_gpu_memory_used_bytes": "gauge",
    "nv_gpu_power_usage": "gauge",
    "nv_gpu_power_limit": "gauge",
    "nv_energy_consumption": "counter",
}
AGE = "nerite_gpu_metrics_age_seconds"
# One NVML call of each figure and device is a look.
LOOKS = 4
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def only_nerite(launcher):
    if launcher.oracle:
        pytest.skip("2.51 here is built without GPUs")


def page(server) -> str:
    return http_call(server.metrics, "GET", "/metrics").ok().body.decode()


def figures(server) -> dict[tuple[str, int], float]:
    """The samples of GPUs, by family and place of the GPU."""
    found = re.findall(r'^(\w+)\{gpu_uuid="([^"]+)"\} (\S+)$', page(server), re.M)
    return {(family, UUIDS.index(uuid)): float(value) for family, uuid, value in found}


def comes(condition):
    """Waits for what the condition gives, which has no time of its own."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def serving(launcher, folder: pathlib.Path, *defined: str, flags=(), nvml: bool = True):
    repository = launcher.copy_of(f"gpu_metrics_{folder.name}", "identity_fp32")
    with stand_ins(folder, *defined, nvml=nvml):
        with launcher.running(f"gpu_metrics_{folder.name}", "--metrics-interval-ms=20", *flags, repository=repository) as found:
            yield found


def shown(server) -> set[tuple[str, int]]:
    return {key for key in figures(server) if key[0] != AGE}


ALL = {(family, gpu) for family in FAMILIES for gpu in (0, 1)}


def ends(server) -> None:
    """The server stops when it is told to, whatever its driver does."""
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE_S) == 0


def test_both_gpus_have_tritons_families(launcher, tmp_path):
    with serving(launcher, tmp_path) as server:
        first = comes(lambda: ALL <= shown(server) and figures(server))
        assert shown(server) == ALL
        for gpu in (0, 1):
            assert first["nv_gpu_utilization", gpu] == 0.25 * (gpu + 1)
            assert first["nv_gpu_memory_total_bytes", gpu] == 8 * GIB
            assert first["nv_gpu_memory_used_bytes", gpu] == (gpu + 1) * GIB
            assert first["nv_gpu_power_usage", gpu] == 100.5 * (gpu + 1)
            assert first["nv_gpu_power_limit", gpu] == 700
            # The driver's own counter begins at 5 and 7 kJ: this one counts from the first look.
            assert first["nv_energy_consumption", gpu] % 2.5 == 0 and first["nv_energy_consumption", gpu] < 1000
        comes(lambda: all(figures(server)["nv_energy_consumption", gpu] > first["nv_energy_consumption", gpu] for gpu in (0, 1)))
        kinds = dict(re.findall(r"^# TYPE (nv_gpu\w+|nv_energy\w+) (\w+)$", page(server), re.M))
        assert kinds == FAMILIES
        ends(server)


def test_a_figure_that_fails_three_times_is_dropped_and_the_others_stay(launcher, tmp_path):
    macros = ['FAIL="nvmlDeviceGetPowerUsage"', "DEVICE=1", f"AFTER={LOOKS}"]
    with serving(launcher, tmp_path, *macros) as server:
        comes(lambda: "is no longer shown after 3 failures" in server.log_text())
        comes(lambda: shown(server) == ALL - {("nv_gpu_power_usage", 1)})
        energy = figures(server)["nv_energy_consumption", 1]
        comes(lambda: figures(server)["nv_energy_consumption", 1] > energy)
        lines = [line for line in server.log_text().splitlines() if "nvmlDeviceGetPowerUsage" in line]
        assert len(lines) == 1
        assert f"the power usage of {UUIDS[1]} is no longer shown after 3 failures: nvmlDeviceGetPowerUsage: Unknown Error (999)" in lines[0]


def test_a_figure_that_a_gpu_does_not_have_is_left_out_without_a_warning(launcher, tmp_path):
    with serving(launcher, tmp_path, 'FAIL="nvmlDeviceGetTotalEnergyConsumption"', "CODE=3") as server:
        comes(lambda: shown(server) == {key for key in ALL if key[0] != "nv_energy_consumption"})
        lines = [line for line in server.log_text().splitlines() if "nvmlDeviceGetTotalEnergyConsumption" in line]
        assert len(lines) == 2 and all(line.startswith("I") for line in lines)


def test_a_driver_that_hangs_delays_nobody_and_its_last_figures_stay(launcher, tmp_path):
    with serving(launcher, tmp_path, 'HANG="nvmlDeviceGetPowerUsage"', f"AFTER={LOOKS}") as server:
        comes(lambda: ALL <= shown(server) and figures(server)[AGE, 0] > 1)
        before = figures(server)
        comes(lambda: figures(server)[AGE, 0] > before[AGE, 0] + 1)
        after = figures(server)
        assert {key: after[key] for key in ALL} == {key: before[key] for key in ALL}
        http_call(server.http, "GET", "/v2/health/ready").ok()
        ends(server)


def test_a_driver_that_hangs_in_the_first_look_is_seen_by_the_age(launcher, tmp_path):
    with serving(launcher, tmp_path, 'HANG="nvmlDeviceGetPowerUsage"') as server:
        comes(lambda: figures(server).get((AGE, 0), 0) > 0.5)
        assert not shown(server)
        ends(server)


def test_an_nvml_that_never_starts_delays_neither_start_nor_end(launcher, tmp_path):
    with serving(launcher, tmp_path, 'HANG="nvmlInit_v2"') as server:
        # The first look at the machine comes some time after the start.
        comes(lambda: "nv_cpu_utilization" in page(server))
        assert not figures(server)
        ends(server)


def test_an_nvml_that_fails_to_start_is_reported(launcher, tmp_path):
    with serving(launcher, tmp_path, 'FAIL="nvmlInit_v2"', "CODE=9") as server:
        comes(lambda: "NVML does not start: nvmlInit_v2: Unknown Error (9); there are no metrics of GPUs" in server.log_text())
        assert not figures(server)


def test_gpu_metrics_can_be_switched_off(launcher, tmp_path):
    with serving(launcher, tmp_path, flags=["--allow-gpu-metrics=false"]) as server:
        # The other metrics of the interval are there.
        comes(lambda: "nv_cpu_utilization" in page(server))
        assert not figures(server)
        assert "libnvidia-ml" not in pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()


def has_nvml() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_nvml(), reason="this host has NVML")
@pytest.mark.parametrize("verbose", [1, 0])
def test_without_nvml_there_are_none_and_only_the_verbose_log_says_so(launcher, tmp_path, verbose):
    with serving(launcher, tmp_path, flags=[f"--log-verbose={verbose}"], nvml=False) as server:
        if verbose:
            comes(lambda: "no NVML: libnvidia-ml.so.1: cannot open shared object file" in server.log_text())
        else:
            comes(lambda: "nv_cpu_utilization" in page(server) and "nerite-nvml" not in threads(server))
        lines = [line for line in server.log_text().splitlines() if "NVML" in line or "metrics of GPU" in line]
        assert len(lines) == verbose
        assert not figures(server)


def test_without_a_gpu_nobody_looks_for_nvml(launcher):
    repository = launcher.copy_of("gpu_metrics_none", "identity_fp32")
    flags = ["--metrics-interval-ms=20", "--log-verbose=1", "--cuda-library=none"]
    with launcher.running("gpu_metrics_none", *flags, repository=repository) as server:
        comes(lambda: "nv_cpu_utilization" in page(server))
        assert not figures(server)
        assert "NVML" not in server.log_text() and "nerite-nvml" not in threads(server)


def threads(server) -> set[str]:
    """The names of the threads that run now."""
    names = set()
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.add((task / "comm").read_text().strip())
    return names
