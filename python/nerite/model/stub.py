"""How does the process answer the server's commands?

One after another, on the main thread. A second thread ends the process when the server has ended.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import sys
import threading
from typing import Any, Callable, Optional

import numpy as np

from . import batch, debugger, decoupled, imports, loading, metrics, nested, packed, packets, readiness, template, title, waiting, workers
from .answer import ModelChannel
from .batch import call
from .calls import Calls
from .channel import Channel, Ended, SideChannel
from .errors import CALLERS, error_text
from .logger import Logger
from .memory import Guard, Memory
from .tensors import Tensor

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The signal mask of a thread that forks, before it forks.
_held = threading.local()

_PR_SET_PDEATHSIG = 1
# The interval, in seconds, between checks of which memory an idle model still uses.
_LOOK_S = 1.0

KEPT = (
    "it keeps an input's array after execute; the array is the client's own region and changes when the client writes there: let the "
    "model copy it, or set its parameter PRIVATE_INPUTS to 'yes' for copies of all"
)


class Failed(Exception):
    """A command cannot be carried out. The text is for the server."""


class Stub:
    """One instance of a model, and its state."""

    def __init__(self, channel: Channel, side: SideChannel, calls: Calls, guard: Optional[int]) -> None:
        self._channel = channel
        self._side = side
        self._guard_descriptor = guard
        self._pipes = {descriptor: _file_at(descriptor) for descriptor in (1, 2)}
        self._model_channel = ModelChannel(channel, side, calls)
        self._is_decoupled = False
        self._class: Any = None
        self._model: Any = None
        self._names: packets.Model = {}  # type: ignore[typeddict-item]
        self._warned = False
        self._readiness: Optional[readiness.ReadinessAnswers] = None
        # None until the model's file was imported.
        self._imported: Optional[imports.ImportedFiles] = None
        # The stub of the template, if this process was forked from one.
        self._inherited: Optional[Stub] = None
        self._guard_loaded: Optional[Guard] = None
        self._commands: dict[str, Callable[[packets.Command], packets.Answer]] = {
            "complete": self._complete,
            "initialize": self._initialize,
            "execute": self._execute,
            "ready": self._ready,
            "reap": lambda command: {"reaped": template.reap(command["pid"])},
            "finalize": self._finalize,
        }

    def serve(self) -> None:
        """Answers commands until the model is finalized. Raises :class:`Ended` when the server has ended."""
        channel = self._channel
        done = False
        while not done:
            self._rest()
            received, descriptors = channel.receive()
            message: packets.Command = received
            if message.get("forget"):
                self._model_channel.memory.forget(message["forget"])
            name = message.get("do")
            if name is None:
                continue
            if name == "fork":
                channel.send(self._fork(descriptors))
                continue
            try:
                if message.get("map"):
                    self._model_channel.memory.map(message["map"], descriptors)
                answer: packets.Answer = self._commands[name](message)
            except (Failed, loading.NotLoaded) as failed:
                answer = {"error": str(failed)}
            except Ended:
                raise
            except BaseException as error:  # noqa: BLE001 - a model may raise anything, SystemExit as well
                answer = {"error": error_text(error)}
            if name == "execute" and not self._is_decoupled:
                self._report_kept(message, answer)
            if self._model_channel.memory.unmapped:
                answer["unmapped"], self._model_channel.memory.unmapped = list(self._model_channel.memory.unmapped), {}
            if name == "execute" and "responses" in answer:
                channel.send_packet(packed.executed(answer))
            else:
                channel.send(answer)
            done = name == "finalize"
            # These variables must not keep the memory of a batch until the next one.
            del received, message, answer

    def _rest(self) -> None:
        """Waits for the next command. Meanwhile memory that the model stops using is returned to the server, because the next command may
        never come.
        """
        memory, model_channel = self._model_channel.memory, self._model_channel
        while (memory.keeps_any() or model_channel.open_requests or model_channel.iterators or metrics.is_behind()) and not self._channel.wait(_LOOK_S):
            self._clean_up()
            let_go = memory.let_go()
            if let_go:
                memory.given_back(self._side.let_go(let_go))

    def _load(self, model: packets.Model, debug: Optional[int] = None) -> None:
        """Imports the model's file, once. ``debug`` is the port at which a debugger attaches before."""
        if self._class is not None:
            return
        module = loading.find(model)
        self._names = model
        if debug is not None:
            debugger.wait_for_client(model["name"], model["instance"], debug, self._side.log)
        self._class = loading.import_class(module)
        # The model may take long to load its weights, and a file may be changed meanwhile. So the states are noted before that.
        self._imported = imports.ImportedFiles(model["model_dir"])
        self._imported.note()

    def _complete(self, command: packets.Command) -> packets.Answer:
        title.show(command["model"]["title"])
        self._load(command["model"])
        return {"config": loading.completed(self._class, command["model"]["name"], command["config"])}

    def _initialize(self, command: packets.Command) -> packets.Answer:
        title.show(command["model"]["title"])
        self._is_decoupled = command.get("decoupled", False)
        guard = self._guard_loaded = self._guard()
        self._model_channel.memory = Memory(guard)
        self._model_channel.calls.share(self._model_channel.memory)
        self._model_channel.model = command["model"]["name"]
        self._model_channel.declared = _declared(command["args"]["model_config"])
        Logger._write = staticmethod(self._side.log)
        metrics.connect(self._side, command["model"]["instance"])
        Tensor.private_inputs = _private_inputs(command["args"]["model_config"])
        nested.connect(None if command.get("template") else self._model_channel)
        self._make(command)
        if self._imported is not None:
            self._imported.note()
        python = "{}.{}.{}".format(*sys.version_info[:3])
        ready: packets.Ready = {"python": python, "numpy": np.__version__, "guard": guard is not None}
        if command.get("template"):
            return {"ready": ready}
        nested.begin()
        if hasattr(self._model, "is_ready"):
            self._readiness = readiness.ReadinessAnswers(self._model, self._model_channel.calls)
            ready["decides"] = True
        if self._imported is not None:
            self._imported.report_in(ready)
        return {"ready": ready}

    def _make(self, command: packets.Command) -> None:
        """Makes the model: loaded here, or by the template."""
        if self._inherited is not None:
            self._model = self._inherited._model
            self._names = command["model"]
            template.initialize_instance(self._model, command["args"])
            return
        before = template.thread_count()
        self._load(command["model"], command.get("debug"))
        model = call(self._class)
        if hasattr(model, "initialize"):
            call(model.initialize, command["args"])
        self._model = model
        if not command.get("template"):
            return
        refusal = template.refusal()
        if refusal is not None:
            raise Failed(refusal)
        more = template.thread_count() - before
        if more > 0:
            self._side.log("WARNING", f"model '{self._names['name']}', SHARE_INITIALIZE: {template.NATIVE_THREADS.format(more)}")

    def _fork(self, descriptors: "list[int]") -> packets.Answer:
        try:
            kept = [descriptor for descriptor, pipe in self._pipes.items() if _file_at(descriptor) == pipe]
            return {"forked": template.fork(descriptors, kept)}
        except OSError as error:
            return {"error": f"the template cannot be forked: {error}; raise the limits on processes and memory"}

    def inherit(self, other: Stub) -> None:
        """Copies the state of `other`, because this process was forked from its process."""
        self._inherited = other
        self._class = other._class
        self._imported = other._imported
        self._guard_loaded = other._guard_loaded

    def _guard(self) -> Optional[Guard]:
        """The guard, if this system allows it."""
        if self._guard_descriptor is None:
            return self._guard_loaded
        try:
            return Guard(self._guard_descriptor)
        except (ImportError, OSError, AttributeError) as error:
            self._side.log("WARNING", f"the guard cannot be loaded here, so regions are copied by the server: {error}")
            return None
        finally:
            os.close(self._guard_descriptor)
            self._guard_descriptor = None

    def _report_kept(self, command: packets.Command, answer: packets.Answer) -> None:
        """Adds to the answer which memory the model's arrays still use."""
        inputs, outputs = batch.segments(command["requests"])
        if self._model_channel.replaced:
            outputs, self._model_channel.replaced = [*outputs, *self._model_channel.replaced], []
        held, let_go, keeps_region = self._model_channel.memory.kept(inputs, outputs)
        if held:
            answer["held"] = held
        if let_go:
            answer["let_go"] = let_go
        if keeps_region and not self._warned:
            self._warned = True
            self._side.log("WARNING", f"model '{self._names['name']}': {KEPT}")

    def _execute(self, command: packets.Command) -> packets.Answer:
        model_channel = self._model_channel
        run = batch.execute
        if self._is_decoupled:
            run = decoupled.execute
            with model_channel.news:
                model_channel.open_requests += len(command["requests"])
        self._side.run = command["requests"][0]["number"] if command["requests"] else None
        model_channel.execution = waiting.begin()
        answer = run(self._model, self._names, model_channel, command)
        model_channel.execution = None
        if model_channel.released or model_channel.unwanted or metrics.is_behind():
            self._clean_up()
        return answer

    def _clean_up(self) -> None:
        """Reports to the server which requests and metrics the model has dropped."""
        decoupled.release(self._model_channel)
        nested.forget_unwanted(self._model_channel)
        metrics.forget_gone()

    def _ready(self, command: packets.Command) -> packets.Answer:
        if not hasattr(self._model, "is_ready"):
            return {"is_ready": True}
        is_ready = batch.settled(call(self._model.is_ready))
        if not isinstance(is_ready, bool):
            raise Failed("is_ready() must return a boolean value")
        return {"is_ready": is_ready}

    def _finalize(self, command: packets.Command) -> packets.Answer:
        model, self._model = self._model, None
        if self._readiness is not None:
            self._readiness.end()
        nested.end()
        if hasattr(model, "finalize"):
            try:
                call(model.finalize)
            except Exception as error:  # noqa: BLE001 - the model is going; its operator should know
                self._side.log("ERROR", f"finalize failed: {error_text(error)}")
        return {"done": True}


def _private_inputs(model_config: str) -> bool:
    """The value of the configuration's parameter ``PRIVATE_INPUTS``."""
    parameter = json.loads(model_config).get("parameters", {}).get("PRIVATE_INPUTS", {})
    value = parameter.get("string_value", "no")
    if value not in ("yes", "no"):
        raise Failed(f"Incorrect value for PRIVATE_INPUTS: {value}, expected 'yes' or 'no'")
    return bool(value == "yes")


def _declared(model_config: str) -> "frozenset[str]":
    """The names of the configured outputs."""
    return frozenset(one.get("name", "") for one in json.loads(model_config).get("output", []))


def _file_at(descriptor: int) -> "Optional[tuple[int, int]]":
    """The identity of the open file: its device and its number there. None if there is none."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# Errors of this package have no frames that a client should see.
CALLERS.add(Stub.serve.__code__)


def _leave_with(end: socket.socket) -> None:
    """Waits, in a thread, until the server closes the side channel. Then ends the process, even if the model is running."""
    events = select.poll()
    # Only events that cannot be masked: the peer has closed the socket.
    events.register(end, 0)
    while not events.poll():
        pass
    _leave()


def _leave() -> None:
    """Ends the process because the server has ended, and with it the processes that the model started, as far as they are in its group."""
    try:
        # A process that is not the leader would end the group of others.
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    except OSError:
        # A sandbox may forbid this.
        pass
    os._exit(0)


def _end_with_the_server() -> None:
    """Makes the kernel end this process with the thread that started it, even within compiled code. The guard, if there is one, has it end
    the whole group (:class:`Guard`)."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        # The interpreter has no ctypes. The thread that waits for the end must suffice.
        pass


def _stub(channel: socket.socket, side: socket.socket, calls: socket.socket, guard: Optional[int] = None) -> Stub:
    """Makes the stub for these channels."""
    # If a process that the model forks kept these sockets, the server could not see that this process has ended.
    for end in (channel, side, calls):
        os.register_at_fork(after_in_child=end.close)
    threading.Thread(target=_leave_with, args=(side,), name=batch.END_THREAD, daemon=True).start()
    return Stub(Channel(channel), SideChannel(side), Calls(calls), guard)


def _pass_over(number: int, frame: object) -> None:
    """Handles a signal by doing nothing."""


def _leave_the_end_to_the_server() -> None:
    """Makes sure that only the server's SIGKILL ends this process."""
    for number in _ENDING_SIGNALS:
        # A handler is set instead of SIG_IGN, because programs that a model starts would inherit SIG_IGN. They do inherit what the server itself
        # ignores: under nohup, SIGHUP.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _pass_over)


def _hold_signals() -> None:
    """Blocks these signals before a fork. Otherwise a signal to the new process would be lost if it comes before the handlers are reset."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)


def _let_signals_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _end_by_signals() -> None:
    """Undoes :func:`_leave_the_end_to_the_server` in a forked process. Handlers that the model has set stay."""
    for number in _ENDING_SIGNALS:
        if signal.getsignal(number) is _pass_over:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _let_signals_through()


def run(channel: socket.socket, side: socket.socket, calls: int, guard: Optional[int] = None) -> None:
    """The entry point for the launcher. ``channel`` and ``side`` are connected sockets. The others are descriptors: of another socket, and of
    the guard library.
    """
    # As in Triton, whose process embeds the interpreter.
    sys.argv[:] = [""]
    _end_with_the_server()
    _leave_the_end_to_the_server()
    # A worker that the model forks can be ended by these signals, as `multiprocessing` does it.
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_through, after_in_child=_end_by_signals)
    workers.name_as_tritons()
    if sources := getattr(__spec__ and __spec__.loader, "sources", None):
        workers.put_on_path(sources)
    stub = _stub(channel, side, socket.socket(fileno=calls), guard)
    while True:
        try:
            stub.serve()
            break
        except template.Forked as forked:
            _leave_the_end_to_the_server()
            fork = _stub(*forked.ends)
            fork.inherit(stub)
            stub = fork
        except Ended:
            _leave()
    try:
        # Runs only the functions that the model registered for the exit. A normal exit would also wait for threads that the model left
        # behind.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)
