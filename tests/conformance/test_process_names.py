"""Does an operator see which process is whose, in lists of processes and in the log?"""

import pathlib
import re

import graphs
import make_models
import pytest
from python_setup import PATIENT, SANDBOX, kernel_refuses

PYTHON = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        import sys

        assert sys.argv == [""]
"""
COMPLETING = """
    @staticmethod
    def auto_complete_config(config):
        return config
"""
ISOLATED = 'backend: "onnxruntime"\ninstance_group [ { count: 1 kind: KIND_CPU } ]\nparameters { key: "isolated" value { string_value: "true" } }\n'


def put_python(repository: pathlib.Path, name: str, source: str, *more: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(source)
    lines = ['backend: "python"', "instance_group [ { count: 2 kind: KIND_CPU } ]", *more]
    (repository / name / "config.pbtxt").write_text("\n".join(lines) + "\n")


def title_of(pid: int) -> str:
    """The command as `ps` shows it."""
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()


@pytest.mark.parametrize("confined", [False, True], ids=["free", "confined"])
def test_each_process_of_a_model_has_its_name_and_the_log_has_its_number(launcher, confined):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("processes of nerite")
    if confined and (why := kernel_refuses()):
        pytest.skip(why)
    name = f"process_names_{confined}"
    repository = launcher.copy_of(name)
    put_python(repository, "two", PYTHON + COMPLETING)
    # A fork is no other process of its sandbox.
    if not confined:
        put_python(repository, "shared", PYTHON, 'parameters { key: "SHARE_INITIALIZE" value { string_value: "yes" } }')
    make_models.put(repository, "graph", graphs.identity("FP32", ["n"]), ISOLATED)
    flags = [*SANDBOX, "--backend-config=onnxruntime,sandbox=on"] if confined else []
    with launcher.running(name, PATIENT, *flags, repository=repository) as server:
        found = {whose: int(pid) for whose, pid in re.findall(r"\] \"(model '.+) has process (\d+)\"", server.log_text())}
        expected = ["model 'two' instance 0", "model 'two' instance 1", "model 'graph' instance 0"]
        if not confined:
            expected += ["model 'shared' template", "model 'shared' instance 0", "model 'shared' instance 1"]
        # These have ended.
        assert found.pop("model 'two' configuration") and found.pop("model 'graph' configuration")
        assert sorted(found) == sorted(expected)
        for whose, pid in found.items():
            title = f"nerite: {whose}".replace("'", "")
            shown = title_of(pid)
            assert shown == title if "graph" not in whose else shown.startswith(f"{title} instance-worker graph_0"), shown
