"""Does the process of a model answer the server's commands, and does it end when it should?"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import numpy as np
import pytest
from model_server import IDENTITY, INTERPRETER, OBEDIENT, SOURCES, ModelServer, assert_eventually, given, obey, placed, read_text, start  # noqa: F401

EMPTY = "class TritonPythonModel:\n"
FAILING = "from __future__ import annotations\n\ndef deep():\n    raise ValueError('bad')\n\n" + EMPTY
ENDS_S = 60.0
VERSION = subprocess.check_output([INTERPRETER, "-c", "import platform; print(platform.python_version())"], text=True).strip()


def maps(server) -> str:
    """The mappings of the child."""
    with open(f"/proc/{server.process.pid}/maps") as file:
        return file.read()


def test_an_identity_model_writes_its_input_to_the_memory_of_its_output(start):  # noqa: F811
    server = start(IDENTITY, ready=False)
    ready = server.initialize()["ready"]
    assert ready == {"python": VERSION, "numpy": ready["numpy"], "guard": False}
    memory = server.memory(4096)
    numbers = np.arange(16, dtype=np.float32).reshape(4, 4)
    answer = server.execute(server.request([given(memory, "IN", numbers)], [["OUT", 1, 1024, 64, False]]))
    assert answer["responses"] == [{"outputs": [["OUT", "FP32", [4, 4], 1, 1024, 64]], "parameters": {}}]
    assert (placed(server, answer["responses"][0]["outputs"][0]) == numbers).all()
    assert server.exchange({"do": "finalize"}) == {"done": True}
    assert server.process.wait(ENDS_S) == 0


@pytest.mark.parametrize(
    "source, error",
    [
        ("x = 1\n", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        ("def f(:\n", "SyntaxError: invalid syntax ({file}, line 1)"),
        (
            FAILING + "    def initialize(self, args):\n        deep()\n",
            "ValueError: bad\n\nAt:\n  {file}(4): deep\n  {file}(8): initialize\n",
        ),
        (
            EMPTY + "    def __init__(self):\n        raise RuntimeError('no luck')\n",
            "RuntimeError: no luck\n\nAt:\n  {file}(3): __init__\n",
        ),
        (
            EMPTY + "    def __init__(self, more):\n        pass\n",
            "TypeError: {dot}__init__() missing 1 required positional argument: 'more'",
        ),
        (
            EMPTY + "    def initialize(self, args):\n        import sys; sys.exit(3)\n",
            "SystemExit: 3\n\nAt:\n  {file}(3): initialize\n",
        ),
        (
            EMPTY + "    def initialize(self, args):\n        raise KeyError\n",
            "KeyError: <EMPTY MESSAGE>\n\nAt:\n  {file}(3): initialize\n",
        ),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why_in_tritons_form(start, source, error):  # noqa: F811
    server = start(source, ready=False)
    dot = "" if VERSION.startswith("3.9.") else "TritonPythonModel."
    expected = error.format(file=server.version_dir / "model.py", dot=dot)
    assert server.initialize() == {"error": expected}


def test_a_failing_import_is_reported_with_its_file_first(start):  # noqa: F811
    server = start("import nosuchmodule\n", ready=False)
    lines = server.initialize()["error"].splitlines()
    # Python's own message names no folder, and the module may have been there when the model was loaded.
    where = f"'{server.version_dir}' nor in '{server.version_dir.parent}'"
    assert lines[:4] == [
        f"ModuleNotFoundError: No module named 'nosuchmodule' ('nosuchmodule.py' is neither in {where}, nor on the interpreter's own path)",
        "", "At:", f"  {server.version_dir}/model.py(1): <module>",
    ]  # fmt: skip
    assert all("importlib" in line for line in lines[4:])


def test_a_model_finds_its_directories_its_arguments_and_the_module(start):  # noqa: F811
    server = start(OBEDIENT)
    seen = read_text(
        server, obey(server, "import sys; out = sys.path[-2:], type(self).__module__, pb_utils.get_model_dir(), self.args")
    )
    folder = str(server.version_dir)
    path, module, directory, args = eval(seen)
    assert path == [folder, str(server.version_dir.parent)]
    assert (module, directory) == ("1.model", folder)
    assert args["model_instance_name"] == "m_0" and args["model_version"] == "1"
    assert read_text(server, obey(server, "import c_python_backend_utils as c; out = c.Tensor is pb_utils.Tensor")) == "True"


def test_nothing_but_numpy_is_needed(start):  # noqa: F811
    server = start(OBEDIENT)
    code = (
        "import sys; files = {name: getattr(module, '__file__', None) or '' for name, module in sys.modules.items()}\n"
        "out = sorted({name.split('.')[0] for name, file in files.items() if 'site-packages' in file})"
    )
    loaded = eval(read_text(server, obey(server, "import sys; out = list(sys.modules)")))
    assert {"nerite", "tritonclient", "asyncio", "nerite_model.dlpack"}.isdisjoint(loaded)
    assert [name for name in eval(read_text(server, obey(server, code))) if not name.startswith("_")] == ["numpy"]


def test_a_file_of_another_name_can_be_the_model(start):  # noqa: F811
    server = start(OBEDIENT, file="other.py")
    assert read_text(server, obey(server, "out = type(self).__module__, __name__")) == "('1.other', 'builtins')"
    server = start(OBEDIENT, ready=False, file="other.txt")
    assert server.initialize() == {"error": "Model name must end with '.py'. Model name is \"other.txt\"."}


COMPLETING = (
    EMPTY
    + """
    @staticmethod
    def auto_complete_config(config):
        {}
"""
)


@pytest.mark.parametrize(
    "body, answer",
    [
        ("config.set_max_batch_size(4); return config", {"config": {"name": "m", "max_batch_size": 4}}),
        ("return None", {"error": "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."}),
        ("raise ValueError('no')", {"error": "ValueError: no\n\nAt:\n  {file}(5): auto_complete_config\n"}),
        (
            "config.as_dict()['x'] = {1}; return config",
            {"error": "TypeError: Object of type set is not JSON serializable{json}"},
        ),
    ],
)
def test_a_model_completes_its_configuration(start, body, answer):  # noqa: F811
    server = start(COMPLETING.format(body), ready=False)
    command = {"do": "complete", "config": {"name": "m", "max_batch_size": 0}, "model": server.model}
    if "error" in answer:
        answer = {"error": answer["error"].format(file=server.version_dir / "model.py", json="")}
    got = server.exchange(command)
    if "JSON" in got.get("error", ""):
        # Where in the module json it was noticed differs from version to version.
        got["error"] = got["error"].partition("\n")[0]
    assert got == answer


def test_a_model_that_does_not_complete_its_configuration_leaves_it(start):  # noqa: F811
    server = start(IDENTITY, ready=False)
    config = {"name": "m", "input": [{"name": "ü", "data_type": "TYPE_FP32", "dims": [-1]}]}
    assert server.exchange({"do": "complete", "config": config, "model": server.model}) == {"config": config}
    assert "ready" in server.initialize()


IS_READY = EMPTY + "    {} is_ready(self):\n        {}\n"


@pytest.mark.parametrize(
    "source, answer",
    [
        (EMPTY + "    pass\n", {"is_ready": True}),
        (IS_READY.format("def", "return False"), {"is_ready": False}),
        (IS_READY.format("async def", "return True"), {"is_ready": True}),
        (IS_READY.format("def", "return 1"), {"error": "is_ready() must return a boolean value"}),
        (IS_READY.format("def", "1 / 0"), {"error": "ZeroDivisionError: division by zero\n\nAt:\n  {file}(3): is_ready\n"}),
    ],
)
def test_a_model_may_say_whether_it_is_ready(start, source, answer):  # noqa: F811
    server = start(source)
    if "error" in answer:
        answer = {"error": answer["error"].format(file=server.version_dir / "model.py")}
    assert server.exchange({"do": "ready"}) == answer


def test_a_model_that_says_whether_it_is_ready_is_asked_by_its_calls(start):  # noqa: F811
    counting = "self.asked = getattr(self, 'asked', 0) + 1; return [lambda: True, lambda: None, lambda: 1 / 0][self.asked - 1]()"
    server = start(IS_READY.format("async def", counting), ready=False)
    assert server.initialize()["ready"]["decides"] is True
    answers = []
    for _ in range(4):
        call = server.receive(server.calls)
        answers.append(call["readiness"])
        server.calls.send(json.dumps({"call": call["call"], "done": True}).encode())
    assert answers[:3] == [None, True, "is_ready() must return a boolean value"]
    assert answers[3].startswith("ZeroDivisionError: division by zero\n\nAt:\n  ")


def test_finalize_is_called_and_what_it_raises_goes_to_the_log(start):  # noqa: F811
    server = start(EMPTY + "    def finalize(self):\n        print('bye'); 1 / 0\n")
    assert server.exchange({"do": "finalize"}) == {"done": True}
    level, text = server.receive(server.side)["log"]
    assert (level, text.splitlines()[0]) == ("ERROR", "finalize failed: ZeroDivisionError: division by zero")
    assert server.process.wait(ENDS_S) == 0
    assert "bye" in server.printed()


def test_threads_that_a_model_left_behind_do_not_keep_the_process(start):  # noqa: F811
    server = start(OBEDIENT)
    obey(server, "import atexit; atexit.register(print, 'the end'); threading.Thread(target=time.sleep, args=(600,)).start()")
    assert server.exchange({"do": "finalize"}) == {"done": True}
    assert server.process.wait(ENDS_S) == 0
    assert "the end" in server.printed()


@pytest.mark.parametrize("state", ["new", "idle", "executing"])
def test_the_process_ends_when_the_server_is_gone(start, state):  # noqa: F811
    server = start(OBEDIENT, ready=state != "new")
    started = None
    if state != "new":
        started = int(read_text(server, obey(server, "import subprocess; out = subprocess.Popen(['sleep', '600']).pid")))
    if state == "executing":
        server.send({"do": "execute", "requests": [server.request(parameters={"code": "print('begun'); time.sleep(600)"})]})
        assert_eventually(lambda: "begun" in server.printed(), True)
    server.channel.close()
    server.side.close()
    # It ends its whole group.
    assert server.process.wait(ENDS_S) == -signal.SIGKILL
    deadline = time.monotonic() + ENDS_S
    while started and is_running(started):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def test_the_system_ends_a_process_without_its_server_even_in_compiled_code(start):  # noqa: F811
    server = start(OBEDIENT)
    get = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); out = n.value"  # PR_GET_PDEATHSIG
    assert read_text(server, obey(server, get)) == str(signal.SIGKILL.value)


def test_signals_meant_for_the_server_do_not_end_the_process(start):  # noqa: F811
    server = start(OBEDIENT)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(server.process.pid, number)
    assert read_text(server, obey(server, "out = 1")) == "1"
    # Programs that the model starts have the usual actions.
    code = "import subprocess; p = subprocess.Popen(['sleep', '600']); p.terminate(); out = p.wait(60)"
    assert read_text(server, obey(server, code)) == "-15"


def test_programs_of_a_model_ignore_what_the_server_ignores(start):  # noqa: F811
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As under nohup.
    try:
        server = start(OBEDIENT)
    finally:
        signal.signal(signal.SIGHUP, before)
    code = "import subprocess; out = subprocess.check_output(['grep', 'SigIgn', '/proc/self/status'], text=True)"
    ignored = int(read_text(server, obey(server, code)).split()[1], 16)
    assert [bool(ignored & 1 << number - 1) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)] == [True, False, False]


def test_a_process_that_the_model_forked_does_not_hold_the_channel(start):  # noqa: F811
    server = start(OBEDIENT)
    code = "pid = os.fork()\nif not pid: pb_utils.Logger.log_info('from the fork'); time.sleep(600); os._exit(0)\nout = pid"
    forked = int(read_text(server, obey(server, code)))
    try:
        server.process.kill()
        with pytest.raises(EOFError):
            server.receive()
        deadline = time.monotonic() + ENDS_S
        while "from the fork" not in server.printed() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "from the fork" in server.printed()
    finally:
        os.kill(forked, signal.SIGKILL)


def test_a_model_reads_nothing_from_the_servers_input(start):  # noqa: F811
    server = start(OBEDIENT)
    assert read_text(server, obey(server, "import sys; out = repr(sys.stdin.read())")) == "''"


def test_long_commands_and_long_answers_travel_as_memory_files(start):  # noqa: F811
    server = start(OBEDIENT)
    assert read_text(server, obey(server, f"out = len({'x' * 200_000!r})")) == "200000"
    code = "ret = [pb_utils.InferenceResponse(error=pb_utils.TritonError('ü' * 60000)) for _ in requests]"
    assert obey(server, code, count=5)["responses"] == [{"error": ["INTERNAL", "ü" * 60_000]}] * 5
    obey(server, "pb_utils.Logger.log_warn('y' * 100000)")
    assert server.receive(server.side) == {"log": ["WARNING", "y" * 100_000], "at": ["code", 1], "of": 7}


def test_texts_that_are_too_long_are_cut(start):  # noqa: F811
    server = start(OBEDIENT)
    assert len(obey(server, "raise ValueError('x' * (100 << 20))")["error"]) < 70_000
    code = "ret = [pb_utils.InferenceResponse(error=pb_utils.TritonError('x' * (100 << 20)))]"
    assert obey(server, code)["responses"] == [{"error": ["INTERNAL", "x" * 65_536]}]
    obey(server, "pb_utils.Logger.log_warn('y' * (100 << 20))")
    assert server.receive(server.side)["log"] == ["WARNING", "y" * (1 << 20)]


def test_texts_that_are_not_unicode_are_sent_all_the_same(start):  # noqa: F811
    server = start(OBEDIENT)
    assert obey(server, "raise OSError('caf\\udce9 \\U0001f600 ü')")["error"].startswith("OSError: caf? \U0001f600 ü\n")


def test_lines_of_each_level_go_to_the_servers_log_with_file_and_line(start):  # noqa: F811
    server = start(OBEDIENT)
    calls = ["log('a')", "log('b', L.WARNING)", "log_error('c')", "log_verbose('d')", "log_info('e')", "log_warn('f')"]
    obey(server, "\n".join(["L = pb_utils.Logger", *(f"L.{call}" for call in calls)]))
    expected = [["INFO", "a"], ["WARNING", "b"], ["ERROR", "c"], ["VERBOSE", "d"], ["INFO", "e"], ["WARNING", "f"]]
    for line, one in enumerate(expected, start=2):
        assert server.receive(server.side) == {"log": one, "at": ["code", line], "of": 1}


def test_lines_written_while_the_file_is_imported_are_printed(start):  # noqa: F811
    server = start("import triton_python_backend_utils as pb_utils\npb_utils.Logger.log_info('early')\n" + IDENTITY, ready=False)
    server.exchange({"do": "complete", "config": {"name": "m"}, "model": server.model})
    assert "early" in server.printed()


def test_a_server_that_does_not_read_its_log_holds_up_no_model(start):  # noqa: F811
    server = start(OBEDIENT)
    assert read_text(server, obey(server, "[pb_utils.Logger.log_info('z' * 1000) for _ in range(2000)]; out = 1")) == "1"
    assert "zzz" in server.printed()


def test_a_model_learns_that_a_request_was_given_up(start):  # noqa: F811
    server = start(OBEDIENT)
    for answer in (False, True):
        request = server.request([], [["OUT", None, 0, 0, False]], parameters={"code": "out = request.is_cancelled()"})
        server.send({"do": "execute", "requests": [request]})
        assert server.receive(server.side) == {"cancelled": request["number"]}
        server.side.send(json.dumps({"cancelled": answer}).encode())
        need = server.receive()["need"]
        server.send(
            {**server.on_need(*need), "map": server.pending and [server.pending[0].entry()]}, [server.pending.pop().descriptor]
        )
        assert read_text(server, server.receive()) == str(answer)


def test_what_the_server_forgets_is_unmapped_once_no_array_uses_it(start):  # noqa: F811
    server = start(OBEDIENT)
    memory = server.memory(1 << 20)
    one = given(memory, "IN", np.arange(4, dtype=np.int32), "INT32")
    obey(server, "self.kept = request.inputs()[0].as_numpy(); out = 0", [one])
    assert maps(server).count("memfd:test") == 2
    server.send({"forget": [memory.segment]})
    assert read_text(server, obey(server, "out = self.kept.tolist()")) == "[0, 1, 2, 3]"
    before = maps(server).count("memfd:test")
    obey(server, "self.kept = None; out = 0", outputs=[])
    assert_eventually(lambda: maps(server).count("memfd:test"), before - 1)


KEPT = ["request.inputs()[0].as_numpy()", "request.inputs()[0].as_numpy()[1:2].view(np.uint8)", "request", "request.inputs()"]


@pytest.mark.parametrize("kept", KEPT)
def test_only_memory_that_a_model_keeps_is_reported(start, kept):  # noqa: F811
    server = start(OBEDIENT)
    memory = server.memory(1 << 16)
    for code, expect in [
        ("out = [one.as_numpy().sum() for one in requests[0].inputs()]", {}),
        (f"self.kept = {kept}", {"held": [memory.segment]}),
        ("out = self.kept", {}),
        ("self.kept = None", {"let_go": [memory.segment]}),
        ("raise ValueError(request.inputs()[0].as_numpy())", {}),
    ]:
        answer = obey(server, code, [given(memory, "IN", np.arange(4, dtype=np.int32), "INT32")])
        assert {key: answer[key] for key in ("held", "let_go") if key in answer} == expect, code


def test_the_memory_of_an_output_that_a_model_keeps_is_reported(start):  # noqa: F811
    server = start(OBEDIENT)
    code = "self.kept = request.output_array('OUT', (4,), 'f4'); ret = [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', self.kept)])]"
    answer = obey(server, code)
    (_, _, _, segment, _, _) = answer["responses"][0]["outputs"][0]
    assert answer["held"] == [segment]
    assert obey(server, "self.kept = None", outputs=[])["let_go"] == [segment]


def test_an_idle_model_gives_memory_back_that_it_kept(start):  # noqa: F811
    """Without another request, and only what the server had of it is settled: it may not have read yet that more was kept."""
    server = start(OBEDIENT)
    inputs = [given(server.memory(1 << 16), "IN", np.arange(4, dtype=np.int32), "INT32") for _ in range(2)]
    code = "self.kept = [one.as_numpy() for one in request.inputs()]; threading.Timer(0.1, self.kept.clear).start()"
    answer = obey(server, code, inputs, outputs=[])
    assert sorted(answer.get("held", [])) == [1, 2], answer
    for had in ([1], [2]):
        call = server.receive(server.side)["let_go"]
        assert had[0] in call
        server.side.send(json.dumps({"let_go": had}).encode())
    assert "let_go" not in obey(server, "", outputs=[])


WORKERS = """
import multiprocessing, os
import triton_python_backend_utils as pb_utils
from c_python_backend_utils import Tensor

def work(number):
    pb_utils.Logger.log_info(f"worker {number}")
    return number + 1, pb_utils.triton_string_to_numpy("TYPE_FP32").__name__, Tensor.__name__, os.getpid()

class TritonPythonModel:
    def execute(self, requests):
        with multiprocessing.get_context(requests[0].request_id()).Pool(2) as pool:
            done = pool.map_async(work, range(4)).get(60)
        assert [one[:3] for one in done] == [(number, "float32", "Tensor") for number in range(1, 5)], done
        assert os.getpid() not in {one[3] for one in done}
        return [pb_utils.InferenceResponse([])]
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method_find_the_module(start, method):  # noqa: F811
    server = start(WORKERS)
    assert server.execute(server.request(id=method))["responses"] == [{"outputs": [], "parameters": {}}], server.printed()
    assert "worker 3" in server.printed()


FORKED = """
import os, signal, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        ended = []
        for number in (signal.SIGTERM, signal.SIGHUP):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            os.kill(child, number)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os.kill(os.getpid(), signal.SIGTERM)
        return [pb_utils.InferenceResponse([], error=pb_utils.TritonError(str(ended)))]
"""


def test_signals_end_the_processes_that_a_model_forks_but_not_its_own(start):  # noqa: F811
    server = start(FORKED)
    for _ in range(2):
        assert "[-15, -1]" in str(server.execute(server.request())["responses"])


def test_an_unknown_packet_without_a_command_is_passed_over(start):  # noqa: F811
    server = start(OBEDIENT)
    server.send({"forget": [77]})
    server.send({"something": "else"})
    assert server.exchange({"do": "ready"}) == {"is_ready": True}


def test_the_launcher_ends_quietly_when_there_is_no_first_packet(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    done = subprocess.run([INTERPRETER, "-c", (SOURCES / "launch.py").read_text()], stdin=theirs, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_modules_are_found_by_tracebacks(start):  # noqa: F811
    server = start(OBEDIENT)
    code = "import linecache, traceback\ntry: pb_utils.Tensor('', np.zeros(1))\nexcept Exception: out = traceback.format_exc()"
    assert 'raise TritonModelException("Tensor name cannot be an empty string.")' in read_text(server, obey(server, code))


ANY_OUTPUT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        outputs = [("OUT", np.float32), ("TYPED", np.int32), ("TEXT", np.object_), ("ELSEWHERE", np.float32)]
        tensors = [pb_utils.Tensor(name, np.zeros(1, dtype)) for name, dtype in outputs]
        return [pb_utils.InferenceResponse(tensors) for _ in requests]
"""


def test_outputs_that_the_configuration_does_not_have_are_reported_once(start):  # noqa: F811
    server = start(ANY_OUTPUT, ready=False)
    names = [("OUT", "TYPE_FP32"), ("TYPED", "TYPE_FP32"), ("TEXT", "TYPE_STRING")]
    assert "ready" in server.initialize({"output": [{"name": name, "data_type": datatype} for name, datatype in names]})
    for _ in range(2):
        answer = server.execute(server.request(), server.request())
        assert [one["outputs"] for one in answer["responses"]] == [[], []]
    said = [server.receive(server.side)["log"]]
    assert said == [
        ["WARNING", "model 'm': the output 'ELSEWHERE' of a response is not in its configuration, which has OUT, TEXT, TYPED; no client gets it"],
    ]
    server.side.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.side.recv(1)


def test_a_python_that_is_too_old_runs_nothing(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(json.dumps({"modules": {"old": "raise ValueError('it ran')"}, "main": "old"}).encode())
    old = "import sys; sys.version_info = (3, 8, 19, 'final', 0)\n"
    command = [INTERPRETER, "-c", old + (SOURCES / "launch.py").read_text()]
    done = subprocess.run(command, stdin=theirs, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_file_that_is_gone_at_a_later_start_is_named(tmp_path):
    with ModelServer(tmp_path, OBEDIENT) as server:
        file = server.version_dir / "model.py"
        file.unlink()
        assert server.initialize() == {"error": f"Python model file not found in '{file}'; put it there again, or load the model anew"}


def test_lists_of_processes_show_a_title_and_the_environment_stays(start):  # noqa: F811
    server = start(OBEDIENT)
    read = "out = open('/proc/self/cmdline').read().rstrip(chr(0)), dict(os.environ) != {}, os.environ.get('PATH')"
    title, has_environment, path = eval(read_text(server, obey(server, f"import os; {read}")))
    assert title == "nerite: model m instance 0" and has_environment and path == os.environ.get("PATH")
