"""May a Python model ask other models, and what does it hear?"""

import os
import time

import numpy as np
import pytest
import python_catalogue
from clients import HttpClient, differs, fp32, open_client, text
from python_setup import serving, strings

MODEL = "py_asking"
FAILED = "Model {0} - Error when running inference: "


@pytest.fixture
def run_code(python_server):
    with open_client("http", python_server) as client:

        def run(code: str, *more, **parameters) -> str:
            reply = client.infer(MODEL, [text("CODE", [code.encode()]), *more], **parameters)
            return strings(reply.outputs["SAID"].raw)[0]

        yield run


DECOUPLED = (
    "Model py_decoupled is using the decoupled. The current BLS request call doesn't support models using the decoupled transaction "
    "policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models.'"
)
ONE_BY_ONE = "out = [said(one) for one in request_of('py_decoupled', texts({0!r}), outputs=['SAID', 'MORE']).exec(decoupled=True)]"
NOT_READY = differs("2.51 says that the model is not ready; newer versions what is not found")
CALLS = [
    ("out = said(request_of('py_identity', fp32(1, 2)).exec())", "{'OUTPUT0': [1.0, 2.0]}"),
    ("out = said(request_of('py_identity', fp32(1, 2), model_version=1).exec())", "{'OUTPUT0': [1.0, 2.0]}"),
    ("out = said(request_of('py_strings', texts('a', 'b', name='INPUT0')).exec())", "{'OUTPUT0': [b'a', b'b']}"),
    ("out = said(request_of('py_identity', fp32(*range(5))).exec())", "{'OUTPUT0': [0.0, 1.0, 2.0, 3.0, 4.0]}"),
    ("out = said(request_of('chain', fp32(1, 2)).exec())", "{'OUTPUT0': [1.0, 2.0]}"),
    ("out = said(request_of('simple', pb_utils.Tensor('INPUT0', np.full((1, 16), 7, np.int32)), "
     "pb_utils.Tensor('INPUT1', np.full((1, 16), 3, np.int32)), outputs=['OUTPUT1']).exec())", f"{{'OUTPUT1': {[[4] * 16]}}}"),
    pytest.param("out = said(request_of('nobody', fp32(1)).exec())",
     "error: " + FAILED.format("nobody") + "Request for unknown model: 'nobody' is not found", marks=NOT_READY),
    pytest.param("out = said(request_of('py_identity', fp32(1), model_version=7).exec())",
     "error: " + FAILED.format("py_identity") + "Request for unknown model: 'py_identity' version 7 is not found", marks=NOT_READY),
    ("out = said(request_of('py_strings', texts('a', name='INPUT0'), outputs=['OUTPUT0', 'OUTPUT0']).exec())", "{'OUTPUT0': [b'a']}"),
    ("out = said(request_of('py_identity', fp32(1), outputs=['NONE']).exec())",
     "error: " + FAILED.format("py_identity") + "unexpected inference output 'NONE' for model 'py_identity'"),
    ("out = said(request_of('py_identity', fp32(1, name='NONE')).exec())",
     "error: " + FAILED.format("py_identity") + "unexpected inference input 'NONE' for model 'py_identity'"),
    ("out = said(request_of('py_actions', texts('error', 'NOT_FOUND', name='ACTION'), outputs=['SAID']).exec())", "error: refused, as asked"),
    pytest.param("out = request_of('py_actions', texts('error', 'NOT_FOUND', name='ACTION'), outputs=['SAID']).exec().error().code()",
     "__ErrorCode.NOT_FOUND", marks=differs("2.51 says INTERNAL; newer versions keep the code")),
    ("out = said(request_of('py_actions', texts('raise_', name='ACTION'), outputs=['SAID']).exec())",
     "error: Failed to process the request(s) for model 'py_actions_0', message: RuntimeError: this model does not want to\n\nAt:\n"),
    ("out = said(request_of('py_decoupled', texts('pass'), outputs=['SAID']).exec())", "error: " + FAILED.format("py_decoupled") + DECOUPLED),
    (ONE_BY_ONE.format("send(text('a')); send(text('b')); send(flags=FINAL)"), """["{'SAID': [b'a']}", "{'SAID': [b'b']}", '{}']"""),
    (ONE_BY_ONE.format("send(text('a')); send(text('b'), FINAL)"), """["{'SAID': [b'a']}", "{'SAID': [b'b']}"]"""),
    ("out = [said(one) for one in request_of('py_identity', fp32(1)).exec(decoupled=True)]", """["{'OUTPUT0': [1.0]}"]"""),
    ("out = [said(one) for one in request_of('nobody', fp32(1)).exec(decoupled=True)]",
     '["error: ' + FAILED.format("nobody")),
    ("out = type(request_of('py_identity', fp32(1)).exec(decoupled=True)).__name__", "ResponseIterator"),
    ("out = self.early", "TritonModelException: BLS is only supported during the 'execute' function."),
    ("out = refused(request_of, 'py_identity', None)",
     "TritonModelException: Input tensor for request with id '' and model name 'py_identity' should not be empty."),
    ("out = refused(request_of('py_identity', fp32(1)).async_exec)", "RuntimeError: no running event loop"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), CALLS)
def test_what_a_model_gets_from_another_model(run_code, code, expected):
    found = run_code(code)
    # Errors may go on with where they were raised, or with a cure.
    if "rror: " in expected or expected.endswith(": "):
        found = found[: len(expected)]
    assert found == expected
    assert run_code("out = said(request_of('py_identity', fp32(3)).exec())") == "{'OUTPUT0': [3.0]}"


# Of the built-in backend: NVIDIA's has no such channel.
OWN_CALLS = [
    # Parameters travel as JSON, which has no such numbers.
    pytest.param(
        "out = refused(lambda: request_of('py_identity', fp32(1), parameters={'a': float('nan')}))",
        "TritonModelException: Expect parameters values to be finite numbers, found nan",
    ),
    # A packet of the model's own, as code could write it that uses the channel.
    pytest.param(
        "from nerite_model import nested\n"
        "calls = nested.speaking().calls\n"
        "with calls._news: calls._pending[99999] = __import__('collections').deque()\n"
        "calls._channel.send_packet(b'{\"call\":99999,\"infer\":NaN}')\n"
        "out = calls.wait(99999)['error']",
        "the server cannot read the call: ",
    ),
]  # fmt: skip


@differs("2.51 has no such channel", run=False)
@pytest.mark.parametrize(("code", "expected"), OWN_CALLS)
def test_a_call_that_cannot_be_read_has_an_answer(run_code, code, expected):
    assert expected in run_code(code)


@differs("2.51 waits for ever after an error", run=False)
def test_an_error_among_several_responses(run_code):
    found = run_code(ONE_BY_ONE.format("send(error('no')); send(numbers(5), FINAL)"))
    assert found == """['error: no', "{'MORE': [5.0]}"]"""


OVERLAPPING = """
async def hears():
    responses = await request_of('py_decoupled', texts("open('FIFO').close(); send(text('a'), FINAL)"), outputs=['SAID']).async_exec(decoupled=True)
    return [said(response) for response in responses]

async def opens():
    await request_of('py_identity', fp32(1)).async_exec()
    open('FIFO', 'w').close()

async def both():
    return (await asyncio.gather(hears(), opens()))[0]

out = asyncio.run(both())
"""


AGAIN = """
async def asks():
    return await request_of('py_decoupled', texts(CODE), outputs=['SAID']).async_exec(decoupled=True)

CODE = "send(text('a')); send(text('b')); send(flags=FINAL)"
responses = RESPONSES
first = [said(one) for one in responses]
for one in responses: break
out = (first, said(next(responses)), len(list(responses)), [said(one) for one in responses] == first)
"""


@pytest.mark.parametrize(
    "responses", ["asyncio.run(asks())", "request_of('py_decoupled', texts(CODE), outputs=['SAID']).exec(decoupled=True)"]
)
def test_responses_that_were_read_to_their_end_can_be_read_again(run_code, responses):
    expected = (["{'SAID': [b'a']}", "{'SAID': [b'b']}", "{}"], "{'SAID': [b'b']}", 1, True)
    assert run_code(AGAIN.replace("RESPONSES", responses)) == str(expected)


def test_a_coroutine_that_waits_for_a_first_response_lets_others_run(run_code, tmp_path):
    """The response is made only once the other coroutine has had an answer of its own."""
    os.mkfifo(tmp_path / "fifo")
    assert run_code(OVERLAPPING.replace("FIFO", str(tmp_path / "fifo"))) == """["{'SAID': [b'a']}"]"""


FACTS = """
response = request_of('py_facts', fp32(1), outputs=['FACTS'], request_id='mine', correlation_id=7, flags=3, timeout=5000,
                 parameters={'a': 'b', 'n': 5, 't': True}).exec()
out = [one.decode() for one in response.output_tensors()[0].as_numpy()]
"""


def test_what_the_other_model_sees_of_the_request(run_code):
    found = run_code(FACTS)
    for part in ("mine", "7", "5000", '"a":"b"', '"n":5', '"t":true'):
        assert part in found.replace(" ", "").replace("\\\\", ""), found


def test_large_tensors(run_code):
    code = """
response = request_of('py_identity', pb_utils.get_input_tensor_by_name(request, 'NUMBERS')
                 if False else pb_utils.Tensor('INPUT0', pb_utils.get_input_tensor_by_name(request, 'NUMBERS').as_numpy())).exec()
back = response.output_tensors()[0].as_numpy()
out = (len(back), float(back.sum()))
"""
    values = np.arange(300_000, dtype=np.float32)
    assert run_code(code, fp32("NUMBERS", values.tolist())) == str((300_000, float(values.sum())))


def test_many_requests_side_by_side(run_code):
    code = """
found = []
def work(n):
    for at in range(20):
        found.append(request_of('py_identity', fp32(n, at)).exec().output_tensors()[0].as_numpy().tolist() == [n, at])
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for one in threads: one.start()
for one in threads: one.join()
out = (len(found), all(found))
"""
    assert run_code(code) == "(160, True)"


def test_what_is_kept_of_a_response_stays_as_it_was(run_code):
    run_code("self.kept[:] = []")
    code = "kept = [request_of('py_identity', fp32(*[n] * 100)).exec().output_tensors()[0].as_numpy() for n in range(50)]\nout = all((one == n).all() for n, one in enumerate(kept))"
    assert run_code(code) == "True"


@differs("2.51 has no cancel of responses", run=False)
def test_responses_that_nobody_takes_are_cancelled(run_code):
    code = """
responses = request_of('py_decoupled', texts(
    'def later_work():\\n    for n in range(1000):\\n        if sender.is_cancelled(): break\\n        send(text(n)); time.sleep(0.01)\\n'
    '    self.kept.append(n); send(flags=FINAL)\\nthreading.Thread(target=later_work).start()'), outputs=['SAID']).exec(decoupled=True)
first = said(next(iter(responses)))
responses.cancel()
out = first
"""
    assert run_code(code) == "{'SAID': [b'0']}"
    look = "out = [said(one) for one in request_of('py_decoupled', texts(\"send(text(*self.kept), FINAL)\"), outputs=['SAID']).exec(decoupled=True)]"
    deadline = time.monotonic() + 60
    while (found := run_code(look)) == "[\"{'SAID': []}\"]" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert int(found.split("b'")[1].split("'")[0]) < 900, found
    run_code("out = [1 for one in request_of('py_decoupled', texts('self.kept.clear(); send(flags=FINAL)'), outputs=['SAID']).exec(decoupled=True)]")


def test_a_model_may_ask_another_instance_of_itself(run_code):
    code = "out = said(request_of('py_asking', texts(\"out = 'inner'\"), outputs=['SAID']).exec())"
    assert run_code(code) == "{'SAID': [b'inner']}"


@differs("2.51 waits for ever", run=False)
def test_a_model_that_waits_for_itself_gets_an_error(run_code):
    once = "out = said(request_of('py_asking', texts({!r}), outputs=['SAID']).exec())"
    code = "out = 'innermost'"
    for _ in range(2):
        code = once.format(code)
    found = run_code(code)
    assert "waits for itself" in found, found
    assert run_code("out = 'well'") == "well"


@differs("2.51 has no cure for it", run=False)
def test_a_thread_may_ask_its_own_model_while_execute_runs(run_code, tmp_path):
    # Both instances are busy when the thread asks, and they return without it.
    found = tmp_path / "found"
    nested = "said(request_of('py_asking', texts(\"out = 'answered'\"), outputs=['SAID']).exec())"
    work = f"def later(): pathlib.Path({str(found)!r}).write_text({nested})\n"
    inner = f"import pathlib\n{work}threading.Thread(target=later).start(); time.sleep(0.5); out = 'well'"
    assert run_code(f"out = said(request_of('py_asking', texts({inner!r}), outputs=['SAID']).exec())") == "{'SAID': [b'well']}"
    deadline = time.monotonic() + 60
    while not (found.exists() and found.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert found.read_text() == "{'SAID': [b'answered']}"


@differs("2.51 waits for ever", run=False)
def test_a_thread_that_execute_waits_for_gets_an_error_if_no_answer_can_come(run_code):
    nested = "said(request_of('py_asking', texts(\"out = 'never'\"), outputs=['SAID']).exec())"
    # A model does not change this. It is 30 s otherwise.
    patient = "from nerite_model import waiting\nusual, waiting.HELD_S = waiting.HELD_S, 0.5\n"
    joined = f"found = []\none = threading.Thread(target=lambda: found.append({nested})); one.start(); one.join()\n"
    inner = f"{patient}{joined}waiting.HELD_S = usual; out = found"
    found = run_code(f"out = said(request_of('py_asking', texts({inner!r}), outputs=['SAID']).exec())")
    assert "waits for itself" in found, found
    assert run_code("out = 'well'") == "well"


def test_coroutines_that_ask(python_server):
    with open_client("http", python_server) as client:
        reply = client.infer("py_asking_coroutine", [fp32("INPUT0", [1, 2, 3])])
        assert reply.outputs["OUTPUT0"].raw == fp32("", [3, 6, 9]).raw


def test_what_nested_requests_count(python_server, run_code):
    def count():
        (one,) = HttpClient(python_server.http).statistics("py_identity")
        return one["inference_stats"]["success"]["count"]

    before = count()
    run_code("for n in range(5): request_of('py_identity', fp32(n)).exec()")
    assert count() - before == 5


# ------------------------------------------------------------------------------------------------- loading others


@pytest.fixture(scope="module")
def controlled(launcher):
    if any(launcher.urls):
        pytest.skip("needs a server of its own")
    flags = ["--model-control-mode=explicit", "--load-model=py_asking"]
    with serving(launcher, "python_control", MODEL, "py_identity", "py_actions", flags=flags) as found:
        yield found


CONTROL = """
ready = lambda: pb_utils.is_model_ready('py_identity')
out = [ready()]
pb_utils.load_model('py_identity')
out += [ready(), pb_utils.is_model_ready('py_identity', '1'), said(request_of('py_identity', fp32(4)).exec())]
pb_utils.unload_model('py_identity')
deadline = time.monotonic() + 60
while ready() and time.monotonic() < deadline: time.sleep(0.05)
out += [ready(), said(request_of('py_identity', fp32(4)).exec())]
"""


@NOT_READY
def test_a_model_loads_and_unloads_another(controlled):
    with open_client("http", controlled) as client:
        said = strings(client.infer(MODEL, [text("CODE", [CONTROL.encode()])]).outputs["SAID"].raw)[0]
        gone = "error: Model py_identity - Error when running inference: Request for unknown model: 'py_identity' has no available versions"
        assert said == str([False, True, True, "{'OUTPUT0': [4.0]}", False, gone])


FILES = """
source = 'import numpy as np\\nimport triton_python_backend_utils as pb_utils\\n\\nclass TritonPythonModel:\\n    def execute(self, requests):\\n'
source += '        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([42], np.float32))]) for _ in requests]\\n'
tensor = {'data_type': 'TYPE_FP32', 'dims': [-1]}
config = {'backend': 'python', 'input': [{'name': 'INPUT0', **tensor}], 'output': [{'name': 'OUTPUT0', **tensor}]}
pb_utils.load_model('py_brought', json.dumps(config), {'file:1/model.py': source.encode()})
out = said(request_of('py_brought', fp32(4)).exec())
pb_utils.unload_model('py_brought')
"""


def test_a_model_brings_another_along(controlled):
    with open_client("http", controlled) as client:
        reply = client.infer(MODEL, [text("CODE", [FILES.encode()])])
        assert strings(reply.outputs["SAID"].raw)[0] == "{'OUTPUT0': [42.0]}"


def test_a_load_that_fails_is_an_exception(controlled):
    with open_client("http", controlled) as client:
        code = b"out = refused(pb_utils.load_model, 'nobody')"
        found = strings(client.infer(MODEL, [text("CODE", [code])]).outputs["SAID"].raw)[0]
        assert found.startswith("TritonModelException: ") and "nobody" in found, found


def test_without_explicit_control_nothing_is_loaded(run_code):
    found = run_code("out = refused(pb_utils.load_model, 'py_identity')")
    assert found.startswith("TritonModelException: ") and "explicit model load / unload is not allowed" in found, found


# ----------------------------------------------------------------------------------------- loading others in initialize

EARLY = """
import numpy as np
import triton_python_backend_utils as pb_utils

def tried(call, *given):
    try:
        return repr(call(*given))
    except pb_utils.TritonModelException as error:
        return str(error)

class TritonPythonModel:
    def initialize(self, args):
        self.said = [WHAT]

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([one.encode() for one in self.said], object))]) for _ in requests]
"""
EARLY_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "SAID" data_type: TYPE_STRING dims: -1 }
"""
READY, LOAD, UNLOAD = (f"tried(pb_utils.{name}, '{{}}')" for name in ("is_model_ready", "load_model", "unload_model"))
EXEC = "tried(pb_utils.InferenceRequest(model_name='py_identity', inputs=[], requested_output_names=['OUTPUT0']).exec)"
# Each model, and what it does while it initializes.
EARLY_MODELS = {
    "asks_early": [READY.format("py_identity"), LOAD.format("py_identity"), READY.format("py_identity"), READY.format("asks_early"), EXEC],
    "loads_a_chain": [LOAD.format("loads_the_rest")],
    "loads_the_rest": [LOAD.format("py_actions"), UNLOAD.format("py_actions")],
    "loads_itself": [LOAD.format("loads_itself"), UNLOAD.format("loads_itself")],
    "loads_in_a_circle": [LOAD.format("closes_the_circle")],
    "closes_the_circle": [LOAD.format("loads_in_a_circle")],
    "loads_as_two": [LOAD.format("py_identity")],
}


@pytest.fixture(scope="module")
def early(launcher):
    if any(launcher.urls):
        pytest.skip("needs a server of its own")
    repository = launcher.copy_of("python_early")
    for name in ("py_identity", "py_actions"):
        python_catalogue.put(repository, python_catalogue.named(name))
    for name, what in EARLY_MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        groups = "instance_group [{ kind: KIND_CPU count: 2 }]" if name == "loads_as_two" else ""
        (repository / name / "config.pbtxt").write_text(EARLY_CONFIG + groups)
        (repository / name / "1" / "model.py").write_text(EARLY.replace("WHAT", ", ".join(what)))
    # The loads for which a load waits must not need a place beside its own.
    flags = ["--model-control-mode=explicit", "--model-load-thread-count=1", "--backend-config=python,stub-timeout-seconds=60"]
    with launcher.running("python_early", *flags, repository=repository) as found:
        yield found


def said_early(server, name: str) -> "list[str]":
    """What the calls in the model's initialize returned."""
    with open_client("http", server) as client:
        client.load(name)
        return strings(client.infer(name, [fp32("IN", [1])]).outputs["SAID"].raw)


def test_a_model_loads_another_in_initialize(early):
    only_later = "BLS is only supported during the 'execute' function."
    assert said_early(early, "asks_early") == ["False", "None", "True", "False", only_later]


def test_a_load_for_which_a_load_waits_needs_no_place_of_its_own(early):
    assert said_early(early, "loads_a_chain") == ["None"]
    assert said_early(early, "loads_the_rest") == ["None", "None"]
    assert said_early(early, "loads_as_two") == ["None"]


@differs("2.51 waits for ever", run=False)
def test_a_load_that_would_wait_for_itself_is_refused_at_once(early):
    began = time.monotonic()
    own = "the load of model 'loads_itself' waits for model 'loads_itself', which waits for 'loads_itself' itself"
    load, unload = said_early(early, "loads_itself")
    assert load.startswith(f"Failed to load model: {own}") and unload.startswith(f"Failed to unload model: {own}"), (load, unload)
    assert said_early(early, "loads_in_a_circle") == ["None"]
    with open_client("http", early) as client:
        (found,) = strings(client.infer("closes_the_circle", [fp32("IN", [1])]).outputs["SAID"].raw)
    assert "the load of model 'closes_the_circle' waits for model 'loads_in_a_circle'" in found, found
    assert time.monotonic() - began < 50
