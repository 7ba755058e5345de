"""How does a request get any number of responses, from any thread?

``execute`` returns None and may be called again while earlier requests are still answered. Each response is sent to the server at once. The
server's answer has the places for the next response's outputs. The next response waits for that answer, so the server decides how far a model
runs ahead of a client that reads slowly.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from typing import Any, Optional, Sequence

import numpy as np

from . import batch, packets
from .answer import Answer, ModelChannel, Refused, check_send
from .batch import ModelFailed, call, failure_text, make_requests, method
from .channel import Ended
from .errors import ERROR_CHARACTERS_MAX, TritonModelException
from .memory import Unmapped
from .requests import FLAG_FINAL, InferenceRequest, InferenceResponse

CLOSED = "Unable to send response. Response sender has been closed."


class Responses(Answer):
    """The responses of one request. Every sender holds a reference, so the request is given up when this object is collected."""

    __slots__ = ("_sending", "_granted", "_must_wait", "_inputs")

    def __init__(self, model_channel: ModelChannel, index: int, wire: packets.Request) -> None:
        super().__init__(model_channel, index, wire)
        # Held while a response is written and sent. The model's code may run meanwhile, and send another response.
        self._sending = threading.RLock()
        # The number of the pending call for the next places. 0 if they are known.
        self._granted = 0
        # Whether the first places must be requested too, because the client may not have read the responses of an earlier run.
        self._must_wait = bool(wire.get("asks"))
        self._inputs = [tensor[packets.TENSOR_SEGMENT] for tensor in wire["inputs"]]

    def __del__(self) -> None:
        # No lock may be taken here, because a finalizer can run within any other code.
        self._model_channel.released.append((self._number, self._granted, self._inputs))

    def send(self, response: Optional[InferenceResponse], flags: int) -> None:
        """Sends a response. The rules and their texts are Triton's."""
        check_send(response, flags)
        with self._sending:
            if self._is_final:
                raise TritonModelException(CLOSED)
            self._is_final = flags == FLAG_FINAL
            if response is not None and self._await_places():
                self.write(response)
            self._send_response()
        release(self._model_channel)

    def refuse(self, code: str, text: str) -> None:
        """Ends the request with an error, before the model has seen it."""
        self._is_final = True
        self.fail(code, text)
        self._send_response()

    def number(self) -> int:
        """The request's number."""
        return self._number

    def close(self) -> bool:
        """Forbids further responses. Returns whether the request had not ended."""
        with self._sending:
            was_open, self._is_final = not self._is_final, True
            return was_open

    def give_up(self, text: str) -> None:
        """Ends the request, if it has not ended, because the model failed. The error is sent here, in order with the request's
        responses."""
        with self._sending:
            if not self._is_final:
                self._is_final = True
                self.response = {"failed": ("INTERNAL", text[:ERROR_CHARACTERS_MAX])}
                self._send_response()

    def _send_response(self) -> None:
        message: Any = {"respond": self._number, "final": self._is_final}
        if self.response is not None:
            message["response"] = self.response
        if self._model_channel.memory.has_lost():
            outputs = (place[packets.PLACE_SEGMENT] for place in self._wanted.values())
            message["lost"] = self._model_channel.memory.lost({*self._inputs, *outputs})
        self.response = None
        if self._is_final:
            self._model_channel.calls.notify(message)
        elif not self.is_closed:
            self._granted = self._model_channel.calls.begin(message)

    def _await_places(self) -> bool:
        """Waits for the places of the outputs. False if the client does not read responses any more."""
        number, self._granted = self._granted, 0
        if self._must_wait:
            self._must_wait = False
            number = self._model_channel.calls.begin({"respond": self._number, "final": False})
        if number:
            answer = self._model_channel.calls.wait(number)
            self.is_closed = answer.get("over", False)
            self._wanted = {output[0]: output for output in answer.get("outputs", ())} or self._wanted
        return not self.is_closed

    def _enlarge(self, place: packets.PlaceFor, byte_size: int) -> None:
        answer = self._model_channel.calls.call({"place": (self._number, place[0], byte_size)})
        if "at" not in answer:
            raise Refused(answer.get("error", "the request has ended"))
        place[1:4] = answer["at"]

    def output_array(self, name: str, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """An array over the client's place for an output. An ordinary array if no place fits: memory that the server lent is reused for
        other clients after the response.
        """
        with self._sending:
            self._await_places()
            place = self._wanted.get(name)
            if place is None or not place[4]:
                return np.empty(shape, dtype)
            return super().output_array(name, shape, dtype)


def execute(model: Any, names: packets.Model, model_channel: ModelChannel, command: packets.Command) -> packets.Answer:
    """Answers the command ``execute`` for a decoupled model, whose responses are sent separately."""
    answers = [Responses(model_channel, index, wire) for index, wire in enumerate(command["requests"])]
    failure = None
    try:
        _run(model, names, model_channel, command["requests"], answers)
    except Ended:
        raise
    except (ModelFailed, Unmapped) as failed:
        failure = str(failed)
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt, too, fail the batch alone
        failure = failure_text(error)
    if batch.is_fork:
        # This is a child that the model forked, and that returned from execute. Its parent sends the answer.
        os._exit(0)
    if failure is not None:
        text = f"Failed to process the request(s) for model '{names['instance']}', message: {failure}"
        model_channel.side.log("ERROR", text)
        for answer in answers:
            answer.give_up(text)
    return {"responses": []}


def _run(model: Any, names: packets.Model, model_channel: ModelChannel, wires: "list[packets.Request]", answers: "list[Responses]") -> None:
    requests = make_requests(wires, answers, model_channel.memory)
    if not requests:
        return
    run = method(model, names)
    returned = call(run, requests[:])
    _run_again(requests, model_channel)
    # From now on only the model refers to them.
    requests = []
    if hasattr(returned, "__await__"):
        from . import loop

        loop.begun(returned).add_done_callback(lambda done: _note(done, names, model_channel))
    elif returned is not None:
        raise ModelFailed(
            f"Python model '{names['instance']}' is using the decoupled mode and the execute function must return None."
        )


def _run_again(requests: "list[InferenceRequest]", model_channel: ModelChannel) -> None:
    """Reschedules requests that the model released with the flag for it. The server is notified before the batch is answered."""
    numbers = []
    for request in requests:
        answer = request._answer
        if request._is_again and isinstance(answer, Responses) and answer.close():
            numbers.append(answer.number())
    if numbers:
        model_channel.calls.call({"again": numbers})


def _note(done: "concurrent.futures.Future[Any]", names: packets.Model, model_channel: ModelChannel) -> None:
    """Called when a coroutine has ended. Its requests without a final response are given up when they are collected."""
    if done.cancelled():
        return
    error = done.exception()
    if error is not None:
        model_channel.side.log("ERROR", f"model '{names['name']}', execute: {failure_text(error)}")


def release(model_channel: ModelChannel) -> None:
    """Reports to the server which requests cannot be answered any more, because no sender is left."""
    while model_channel.released:
        try:
            number, granted, inputs = model_channel.released.popleft()
        except IndexError:
            return
        if granted:
            model_channel.calls.drop(granted)
        held, let_go, _ = model_channel.memory.kept(inputs, ())
        message: Any = {"release": number}
        if held:
            message["held"] = held
        if let_go:
            message["let_go"] = let_go
        model_channel.calls.notify(message)
        with model_channel.news:
            model_channel.open_requests -= 1


