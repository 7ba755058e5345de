"""How is a batch of requests run?

``execute`` is called once with all requests. Its return value is checked by the rules of Triton's default mode, with Triton's texts.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from typing import Any, Callable, Optional, Sequence

import numpy as np

from . import packets
from .answer import Answer, ModelChannel
from .channel import Ended
from .errors import CALLERS, error_text
from .memory import Memory, Unmapped
from .requests import InferenceRequest, InferenceResponse
from .tensors import BrokenInput, DeviceTensor, Tensor, decoded

_LOOK_AGAIN_S = 0.05

SECOND_RESPONSE = "a response was returned for a request that its response sender had answered; the first counts"
NO_RESPONSE = "the model returned None for this request, and its response sender sent no response"


def call(function: Callable[..., Any], *given: Any) -> Any:
    """Calls a function of the model. The traceback of an error begins below this function."""
    return function(*given)


CALLERS.add(call.__code__)


_READ_ONLY_CURE = (
    "an input's array is the client's own memory, which the model cannot write to: let it compute another array, as in `x = x / 255` in "
    "place of `x /= 255`, or set its parameter PRIVATE_INPUTS to 'yes' for copies of all inputs"
)
# The names of the thread that ends the process with the server, and of the thread that answers readiness checks.
END_THREAD, READINESS_THREAD = "nerite-end", "nerite-readiness"
NOTHING = np.empty(0, np.uint8)
# Whether this process was forked by the model. It is set at the fork, because comparing process IDs would take a system call for each batch.
is_fork = False


def _note_fork() -> None:
    global is_fork
    is_fork = True


os.register_at_fork(after_in_child=_note_fork)


class ModelFailed(Exception):
    """The model broke a rule. The text is for the client."""


def execute(model: Any, names: packets.Model, model_channel: ModelChannel, command: packets.Command) -> packets.Answer:
    """Answers the command ``execute``: runs the batch and writes its outputs."""
    wires = command["requests"]
    answers = [Answer(model_channel, index, wire) for index, wire in enumerate(wires)]
    failure = None
    try:
        requests = make_requests(wires, answers, model_channel.memory)
        if requests:
            # The model gets a copy of the list and may change it. If the model returns a coroutine, this waits for it.
            returned = call(method(model, names), requests[:])
            if type(returned) is not list:
                returned = settled(returned)
            if is_fork:
                # This process is a child that the model forked, and it has returned from execute. Its parent sends the answer.
                os._exit(0)
            _collect(returned, requests, model_channel)
    except Ended:
        raise
    except (ModelFailed, Unmapped) as failed:
        failure = str(failed)
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt, too, fail the batch alone
        failure = failure_text(error)
    with model_channel.sending:
        for answer in answers:
            answer.is_closed = True
    if failure is None:
        message: packets.Answer = {"responses": _responses(answers)}
    else:
        message = _failure(failure, answers, names)
        if "responses" in message:
            # An answer that is an error as a whole is logged by the server.
            model_channel.side.log("ERROR", _failed(failure, names))
    if model_channel.memory.has_lost():
        inputs, outputs = segments(wires)
        lost = model_channel.memory.lost({*inputs, *outputs})
        if lost:
            message["lost"] = lost
    return message


def failure_text(error: BaseException) -> str:
    """The text of an error that ``execute`` raised."""
    return error_text(error, cure(error))


def cure(error: BaseException) -> str:
    """What helps a model that wrote to an input. Empty for other errors."""
    return _READ_ONLY_CURE if type(error) is ValueError and "read-only" in str(error) and not Tensor.private_inputs else ""


def _responses(answers: list[Answer]) -> list[packets.Response]:
    # A request without a response is null in the list. The server makes an error of it.
    return [answer.response for answer in answers]  # type: ignore[misc]


def _failure(text: str, answers: list[Answer], names: packets.Model) -> packets.Answer:
    """The answer after a failure of the model: an error for all requests without an answer."""
    if all(answer.response is None for answer in answers):
        return {"error": text}
    for answer in answers:
        if answer.response is None:
            answer.fail("INTERNAL", _failed(text, names))
    return {"responses": _responses(answers)}


def _failed(text: str, names: packets.Model) -> str:
    return f"Failed to process the request(s) for model '{names['instance']}', message: {text}"


def make_requests(wires: list[packets.Request], answers: Sequence[Answer], memory: Memory) -> list[InferenceRequest]:
    """Makes the requests for the model. A request with broken inputs is answered at once and left out."""
    made = []
    for wire, answer in zip(wires, answers):
        inputs = []
        prepared = wire.get("prepared")
        try:
            if prepared is not None:
                if prepared.inputs is None:
                    prepared.make(wire, memory)
                if prepared.inputs is not None:
                    inputs = [Tensor._of_array(name, datatype, array.view()) for name, datatype, array in prepared.inputs]
                    made.append(InferenceRequest._of(wire, inputs, answer))
                    continue
            for name, datatype, shape, segment, offset, byte_size in wire["inputs"]:
                # A tensor without bytes needs no place.
                if segment is None:
                    held = NOTHING
                else:
                    held = memory[segment]
                    memory.refresh(segment, offset, byte_size)
                if datatype == "BYTES":
                    inputs.append(Tensor._of(name, datatype, decoded(held, offset, byte_size, shape, name)))
                elif type(held) is np.ndarray:
                    inputs.append(Tensor._over(name, datatype, shape, held, offset))
                else:
                    inputs.append(DeviceTensor._on(name, datatype, held.elements(shape, offset, byte_size)))
        except BrokenInput as broken:
            answer.refuse("INVALID_ARG", answer.named(str(broken)))
            continue
        except Exception as fault:  # noqa: BLE001 - an input that cannot be made fails its own request only
            answer.refuse("INTERNAL", answer.named(f"input '{name}': {str(fault) or type(fault).__name__}"))
            continue
        made.append(InferenceRequest._of(wire, inputs, answer))
    return made


def method(model: Any, names: packets.Model) -> Callable[..., Any]:
    """The model's ``execute``."""
    run = getattr(model, "execute", None)
    if run is None:
        path = packets.class_file(names)
        raise ModelFailed(f"Python model {path} does not implement `execute` method.")
    return run  # type: ignore[no-any-return]


def settled(returned: Any) -> Any:
    """The value that the model returned, or the result of its coroutine."""
    if not inspect.isawaitable(returned):
        return returned
    from . import loop

    return loop.awaited(returned)


def check_returned(returned: Any, requests: Sequence[InferenceRequest]) -> None:
    """Checks what ``execute`` returned, by Triton's rules. ``None`` counts as a list of ``None``."""
    if returned is None:
        return
    if type(returned) is not list and not isinstance(returned, list):
        raise ModelFailed(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != len(requests):
        raise ModelFailed(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    for response in returned:
        if type(response) is not InferenceResponse and response is not None and not isinstance(response, InferenceResponse):
            raise ModelFailed(
                f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(response)}'."
            )


def _collect(returned: Any, requests: list[InferenceRequest], model_channel: ModelChannel) -> None:
    """Checks the return value and writes the responses."""
    check_returned(returned, requests)
    if returned is None:
        returned = [None] * len(requests)
    for request, response in zip(requests, returned):
        if request._is_again and response is not None:
            raise ModelFailed(
                "Expected a None object in the execute function return list for reschduled request, found type "
                f"'{type(response)}'."
            )
    late = []
    for request, response in zip(requests, returned):
        answer = request._answer
        assert answer is not None, "requests of a batch have one"
        if request._is_again:
            answer.run_again()
            continue
        if response is None:
            late.append((answer, weakref.ref(request)))
            continue
        with model_channel.sending:
            is_second = answer.response is not None
            if not is_second:
                answer.write(response)
        if is_second:
            model_channel.side.log("ERROR", answer.named(SECOND_RESPONSE))
    if late:
        # From now on only the model refers to its requests.
        del request
        requests.clear()
        for answer, kept in late:
            _await_sender(answer, kept, model_channel)
            with model_channel.sending:
                # The sending thread may have ended since.
                if answer.response is None:
                    answer.fail("INTERNAL", answer.named(NO_RESPONSE))


def _await_sender(answer: Answer, request: weakref.ref[InferenceRequest], model_channel: ModelChannel) -> None:
    """Waits for a response while it may still be sent: while the model holds the request or its sender, and has a thread.

    The instance is blocked meanwhile.
    """
    with model_channel.news:
        while answer.response is None:
            if (request() is None and answer.sender_if_used() is None) or not may_be_sent():
                return
            model_channel.news.wait(_LOOK_AGAIN_S)


def may_be_sent() -> bool:
    """Whether another thread or coroutine of the model runs."""
    names = {one.name for one in threading.enumerate() if one is not threading.main_thread()} - {END_THREAD, READINESS_THREAD}
    if "nerite-loop" in names:
        from . import loop

        return len(names) > 1 or loop.is_busy()
    return bool(names)


def segments(wires: list[packets.Request]) -> tuple[list[Optional[int]], list[Optional[int]]]:
    """The segments in which the inputs and the outputs of a batch lie."""
    if len(wires) == 1 and "prepared" in wires[0]:
        prepared = wires[0]["prepared"]
        # Places that are not the client's own may have been replaced in this run. Only the request itself has the new ones.
        if prepared.wanted is not None:
            return prepared.input_segments, prepared.output_segments
    inputs: list[Optional[int]] = []
    outputs: list[Optional[int]] = []
    for wire in wires:
        for tensor in wire["inputs"]:
            inputs.append(tensor[packets.TENSOR_SEGMENT])
        for place in wire["outputs"]:
            outputs.append(place[packets.PLACE_SEGMENT])
    return inputs, outputs
