"""How does a batch of requests become responses?

``execute`` is called once with all of them, and what it returns is held to the rules of Triton's default mode, in its words.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
import weakref
from typing import Any, Callable, Optional, Sequence

import numpy as np

from . import packets
from .answer import Answer, Conversation
from .channel import Ended
from .errors import CALLERS, told
from .memory import Memory, Unmapped
from .requests import InferenceRequest, InferenceResponse
from .tensors import BrokenInput, Tensor, decoded

# A response that is sent after execute returned holds up the instance; not for ever.
LATE_RESPONSE_S = 60.0
_LOOK_AGAIN_S = 0.05

SECOND_RESPONSE = "a response was returned for a request that its response sender had answered; the first counts"
NO_RESPONSE = "the model returned None for this request, and its response sender sent no response"
LATE_RESPONSE = f"the model returned None for this request, and its response sender sent no response within {LATE_RESPONSE_S:.0f} s"


def call(function: Callable[..., Any], *given: Any) -> Any:
    """Calls what belongs to the model: what an error tells ends here."""
    return function(*given)


CALLERS.add(call.__code__)


READ_ONLY = (
    "an input's array is the client's own memory and cannot be written to; let the model copy it, or set its parameter "
    "PRIVATE_INPUTS to 'yes' for copies of all"
)
# The thread that leaves when the server is gone, and the one that says whether the model is ready.
END_THREAD, READINESS_THREAD = "nerite-end", "nerite-readiness"
NOTHING = np.empty(0, np.uint8)
_PID = os.getpid()


class ModelFailed(Exception):
    """A rule was broken by the model; the text is for the client."""


def execute(model: Any, names: packets.Model, talk: Conversation, command: packets.Command) -> packets.Answer:
    """Answers the command ``execute``: runs the batch through the model and writes its outputs."""
    wires = command["requests"]
    answers = [Answer(talk, index, wire) for index, wire in enumerate(wires)]
    failure = None
    try:
        requests = make_requests(wires, answers, talk.memory)
        if requests:
            returned = _run(model, names, requests)
            if os.getpid() != _PID:
                # A child that the model forked and that came back here: the answer is its parent's to give.
                os._exit(0)
            _collect(returned, requests, talk)
    except Ended:
        raise
    except (ModelFailed, Unmapped) as failed:
        failure = str(failed)
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt, too, fail the batch alone
        failure = told(error)
        if isinstance(error, ValueError) and "read-only" in failure:
            talk.side.log("WARNING", f"model '{names['name']}': {READ_ONLY}")
    with talk.sending:
        for answer in answers:
            answer.is_closed = True
    message: packets.Answer = {"responses": _responses(answers)}
    if failure is not None:
        message = _failure(failure, answers, names)
    if talk.memory.has_regions():
        message["lost"] = talk.memory.lost(_segments(wires))
    return message


def _responses(answers: list[Answer]) -> list[packets.Response]:
    # A request that has none is there as null, which the server makes an error of.
    return [answer.response for answer in answers]  # type: ignore[misc]


def _failure(text: str, answers: list[Answer], names: packets.Model) -> packets.Answer:
    """What is answered when the model failed: an error for all, except those that have been answered already."""
    if all(answer.response is None for answer in answers):
        return {"error": text}
    for answer in answers:
        if answer.response is None:
            answer.fail("INTERNAL", f"Failed to process the request(s) for model '{names['instance']}', message: {text}")
    return {"responses": _responses(answers)}


def make_requests(wires: list[packets.Request], answers: Sequence[Answer], memory: Memory) -> list[InferenceRequest]:
    """What the model will see; a request whose inputs are broken is answered at once and left out."""
    made = []
    for wire, answer in zip(wires, answers):
        inputs = []
        try:
            for name, datatype, shape, segment, offset, byte_size in wire["inputs"]:
                # A tensor without bytes needs no place.
                held = memory[segment] if segment is not None else NOTHING
                if datatype == "BYTES":
                    inputs.append(Tensor._of(name, datatype, decoded(held, offset, byte_size, shape, name)))
                else:
                    inputs.append(Tensor._over(name, datatype, shape, held, offset))
        except BrokenInput as broken:
            answer.refuse("INVALID_ARG", str(broken))
            continue
        made.append(InferenceRequest._of(wire, inputs, answer))
    return made


def _run(model: Any, names: packets.Model, requests: list[InferenceRequest]) -> Any:
    """Calls the model; waits if it answers with a coroutine."""
    # The list is the model's; ours stays as it is.
    return settled(call(method(model, names), requests[:]))


def method(model: Any, names: packets.Model) -> Callable[..., Any]:
    """The model's ``execute``."""
    run = getattr(model, "execute", None)
    if run is None:
        path = os.path.join(names["version_dir"], names["file"])
        raise ModelFailed(f"Python model {path} does not implement `execute` method.")
    return run  # type: ignore[no-any-return]


def settled(returned: Any) -> Any:
    """What the model returned; if that is a coroutine, what comes of it."""
    if type(returned) is list or not inspect.isawaitable(returned):
        return returned
    from . import loop

    return loop.awaited(returned)


def _collect(returned: Any, requests: list[InferenceRequest], talk: Conversation) -> None:
    """Holds what was returned to the rules, and writes the responses."""
    if returned is None:
        returned = [None] * len(requests)
    if not isinstance(returned, list):
        raise ModelFailed(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != len(requests):
        raise ModelFailed(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    for response in returned:
        if response is not None and not isinstance(response, InferenceResponse):
            raise ModelFailed(
                f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(response)}'."
            )
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
        with talk.sending:
            is_second = answer.response is not None
            if not is_second:
                answer.write(response)
        if is_second:
            talk.side.log("ERROR", SECOND_RESPONSE)
    if late:
        # From here on only the model keeps its requests.
        del request
        requests.clear()
        deadline = time.monotonic() + LATE_RESPONSE_S
        for answer, kept in late:
            failure = _await_sender(answer, kept, talk, deadline)
            with talk.sending:
                # Whoever sent may have ended since.
                if answer.response is None:
                    answer.fail("INTERNAL", failure)


def _await_sender(answer: Answer, request: weakref.ref[InferenceRequest], talk: Conversation, deadline: float) -> str:
    """Waits for a response that may still be sent: as long as the model has the request or its sender, and a thread.

    Returns what the request fails with if there is none.
    """
    with talk.news:
        while answer.response is None:
            if (request() is None and answer.sender_if_used() is None) or not _may_be_sent():
                return NO_RESPONSE
            if time.monotonic() > deadline:
                return LATE_RESPONSE
            talk.news.wait(_LOOK_AGAIN_S)
    return NO_RESPONSE


def _may_be_sent() -> bool:
    """Whether anything of the model's runs beside the main thread."""
    names = {one.name for one in threading.enumerate() if one is not threading.main_thread()} - {END_THREAD, READINESS_THREAD}
    if "nerite-loop" in names:
        from . import loop

        return len(names) > 1 or loop.is_busy()
    return bool(names)


def _segments(wires: list[packets.Request]) -> set[Optional[int]]:
    """The segments that a batch used."""
    inputs = {one[packets.TENSOR_SEGMENT] for wire in wires for one in wire["inputs"]}
    return inputs | {one[packets.PLACE_SEGMENT] for wire in wires for one in wire["outputs"]}
