"""How does a model run in a terminal, without a server? (``nerite model run``)

The class is loaded, completed and initialized as in a server, and ``execute`` gets requests of sample inputs. Its answers are checked by the
server's rules and printed.
"""

from __future__ import annotations

import bdb
import cProfile
import json
import os
import sys
import threading
import time
import traceback
import weakref
from typing import Any, Callable, Optional, Sequence

import numpy as np

from . import batch, loading, metrics, packets, template, workers
from .errors import TritonModelException
from .requests import FLAG_FINAL, InferenceRequest, InferenceResponse, InferenceResponseSender
from .tensors import NUMPY_DTYPES, Tensor

# How long the responses of a decoupled model, and those of its threads, may take, in seconds.
_RESPONSES_S = 60.0
_LOOK_AGAIN_S = 0.05
# Elements of an array that are printed, and lines of a profile.
_ELEMENTS_MAX = 24
_PROFILE_LINES = 20
# The length of a dimension that the configuration leaves open.
_OPEN_DIMENSION = 1
_SAMPLE_STRING = b"sample"
_SEED = 0
_PROFILER = cProfile.__file__


class Failed(Exception):
    """The model broke a rule. The text is for the terminal."""


class Quit(Exception):
    """The user has left the debugger."""


class Refused(Exception):
    """The model cannot be run with these options. The text is for the terminal."""


class TrialAnswer:
    """The responses of one request, in place of a server's answer."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.is_final = False
        self.news = threading.Condition()
        self.places: dict[str, np.ndarray] = {}
        self._sender: Optional[weakref.ref[InferenceResponseSender]] = None

    def sender(self) -> InferenceResponseSender:
        """The sender of the request's responses."""
        sender = self._sender() if self._sender is not None else None
        if sender is None:
            sender = InferenceResponseSender(self)  # type: ignore[arg-type]
            self._sender = weakref.ref(sender)
        return sender

    def send(self, response: Optional[InferenceResponse], flags: int) -> None:
        """Keeps a response that the model sends."""
        from .answer import check_send

        check_send(response, flags)
        with self.news:
            if self.is_final:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if response is not None:
                self.responses.append(response)
            self.is_final = flags == FLAG_FINAL
            self.news.notify_all()

    def is_cancelled(self) -> bool:
        """Always false, because there is no client."""
        return False

    def output_array(self, name: str, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Memory for an output."""
        return self.places.setdefault(name, np.empty(shape, dtype))

    def wait(self, is_decoupled: bool) -> Optional[str]:
        """Waits for the final response, or without decoupled mode for any response. Returns why there is none, or None if there is one."""
        deadline = time.monotonic() + _RESPONSES_S
        with self.news:
            while not self.is_final and (is_decoupled or not self.responses):
                if not batch.may_be_sent():
                    return "execute returned None, and the model has no thread that could still send the final response"
                if time.monotonic() > deadline:
                    return f"execute returned None, and the final response did not come within {_RESPONSES_S:.0f} s"
                self.news.wait(_LOOK_AGAIN_S)
        return None


class _NoServer:
    """Answers a model's calls about metrics in place of the server. No metrics are shown."""

    def __init__(self) -> None:
        self._count = 0
        self._values: dict[int, float] = {}

    def call(self, question: dict[str, Any]) -> dict[str, Any]:
        if "measure" in question:
            number, how, value = question["measure"]
            before = self._values.get(number, 0.0)
            self._values[number] = {"increment": before + float(value), "set": float(value)}.get(how, before)
            return {"value": self._values[number]}
        self._count += 1
        return {"number": self._count}

    def notify(self, message: dict[str, Any]) -> None:
        pass


def run(path: str) -> None:
    """The entry point. The file has JSON: what ``nerite model run`` knows of the model, and the user's options. Ends the process: with 0, with
    1 if the model failed, with 2 if it cannot be run with these options."""
    with open(path) as file:
        options = json.load(file)
    workers.name_as_tritons()
    metrics.connect(_NoServer(), options["model"]["name"])  # type: ignore[arg-type]
    InferenceRequest._exec = staticmethod(_refuse_call)
    try:
        done = _Trial(options).run()
    except Refused as refused:
        print(f"nerite model run: {refused}", file=sys.stderr)
        sys.exit(2)
    sys.stdout.flush()
    sys.exit(0 if done else 1)


def _refuse_call(request: InferenceRequest, decoupled: bool) -> Any:
    raise TritonModelException(
        f"there is no server here that has model '{request._wire['model']}': a model that asks others runs with `nerite serve`"
    )


class _Trial:
    """A model, and how the user wants to run it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._names: packets.Model = options["model"]
        self._config: dict[str, Any] = options["config"]
        self._args: dict[str, str] = options["args"]
        self._options = options
        self._model: Any = None

    def run(self) -> bool:
        """Loads and runs the model. Returns whether all of it went well."""
        names, version = self._names, "{}.{}.{}".format(*sys.version_info[:3])
        print(f"model '{names['name']}', version {names['version']}, Python {version} with numpy {np.__version__} ({sys.executable})")
        if not self._stage("loading", self._load) or not self._stage("initialize", self._initialize):
            return False
        inputs = self._inputs()
        for name, (datatype, array) in inputs.items():
            print(f"input   {_shown(name, datatype, array)}")
        went_well = self._runs(inputs)
        if hasattr(self._model, "finalize"):
            went_well = self._stage("finalize", self._model.finalize) and went_well
        return went_well

    def _stage(self, name: str, step: Callable[[], Any]) -> bool:
        """Runs one step of the model and prints its time, or its error."""
        began = time.perf_counter()
        try:
            batch.call(step)
        except Refused:
            raise
        except BaseException as error:  # noqa: BLE001 - a model may raise anything, SystemExit as well
            self._print_error(name, error)
            return False
        print(f"{name} took {_time(time.perf_counter() - began)}")
        return True

    def _print_error(self, name: str, error: BaseException) -> None:
        """Prints an error of the model, and opens the debugger there if the option ``pdb`` is set."""
        if isinstance(error, (Quit, bdb.BdbQuit)):
            return
        sys.stdout.flush()
        if isinstance(error, (Failed, batch.ModelFailed)):
            print(f"{name} failed: {error}", file=sys.stderr)
            return
        print(f"{name} failed:", file=sys.stderr)
        own = (os.path.dirname(__file__), bdb.__file__, _PROFILER)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
        sys.stderr.write("Traceback (most recent call last):\n" if frames else "")
        sys.stderr.write("".join(traceback.format_list(frames) + traceback.format_exception_only(type(error), error)))
        cure = batch.cure(error)
        sys.stderr.write(f"{cure}\n" if cure else "")
        sys.stderr.flush()
        if self._options["pdb"] and error.__traceback__ is not None:
            import pdb

            pdb.post_mortem(error.__traceback__)

    def _load(self) -> None:
        try:
            module = loading.find(self._names)
        except loading.NotLoaded as why:
            raise Refused(str(why)) from None
        made = loading.import_class(module)
        try:
            self._config = loading.completed(made, self._names["name"], self._config)
        except loading.NotLoaded as why:
            raise Failed(str(why)) from None
        self._args["model_config"] = packets.encode(self._config)
        self._model = made()

    def _initialize(self) -> None:
        if hasattr(self._model, "initialize"):
            self._model.initialize(self._args)
        if self._parameter("SHARE_INITIALIZE") == "yes":
            template.initialize_instance(self._model, self._args)

    def _parameter(self, key: str) -> str:
        """The value of a parameter of the configuration."""
        return str(self._config.get("parameters", {}).get(key, {}).get("string_value", ""))

    def _inputs(self) -> dict[str, tuple[str, np.ndarray]]:
        """The inputs of each request: those that were given, and samples for the others."""
        given = dict(self._options["inputs"])
        random = np.random.default_rng(_SEED)
        batches = self._config.get("max_batch_size", 0) > 0
        found = {}
        for one in self._config.get("input", []):
            name, datatype = one["name"], _datatype(one.get("data_type", ""))
            text = given.pop(name, None)
            if text is None and one.get("optional"):
                continue
            # A model that reshapes gets the reshaped array from a server.
            dims = [int(dim) for dim in one.get("reshape", {}).get("shape", one.get("dims", []))]
            shape = ([self._options["batch"]] if batches else []) + [_OPEN_DIMENSION if dim < 0 else dim for dim in dims]
            found[name] = (datatype, _sample(datatype, shape, random) if text is None else _given(name, datatype, text))
        if given:
            raise Refused(f"the model has no input '{next(iter(given))}'; it has {', '.join(found) or 'none'}")
        return found

    def _runs(self, inputs: dict[str, tuple[str, np.ndarray]]) -> bool:
        """Runs ``execute`` as often as the option ``runs`` says. Prints the responses of the first run, and the times of all runs."""
        profile = None
        if self._options["profile"]:
            profile = cProfile.Profile()
        times = []
        for number in range(self._options["runs"]):
            answer = TrialAnswer()
            request = self._request(inputs, answer, number)
            began = time.perf_counter()
            try:
                responses = self._execute(request, answer, profile)
            except Refused:
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                self._print_error("execute", error)
                return False
            times.append(time.perf_counter() - began)
            if number == 0 and not (_print_responses(responses) and self._agree(responses)):
                return False
        print(f"execute took {_time(times[0])}" + _spread(times[1:]))
        if profile is not None:
            import pstats

            pstats.Stats(profile, stream=sys.stdout).sort_stats("cumulative").print_stats(_PROFILE_LINES)
        return True

    def _agree(self, responses: Sequence[InferenceResponse]) -> bool:
        """Whether the outputs agree with the configuration, by the rule of the server, which warns. Prints those that do not."""
        declared = {one["name"]: one for one in self._config.get("output", [])}
        batch_dimension = [-1] if self._config.get("max_batch_size", 0) > 0 else []
        found = []
        for tensor in (tensor for response in responses for tensor in response.output_tensors()):
            one = declared.get(tensor.name())
            if one is None:
                continue
            dims = batch_dimension + [int(dim) for dim in one.get("reshape", {}).get("shape", one.get("dims", []))]
            shape = list((tensor.array() if tensor.on_device is None else tensor.on_device).shape)
            datatype = one.get("data_type", "").replace("TYPE_", "", 1).replace("STRING", "BYTES")
            if tensor.datatype != datatype:
                found.append(f"output '{tensor.name()}' has datatype {tensor.datatype}, where its configuration says {datatype}")
            elif not _fits(shape, dims):
                found.append(f"output '{tensor.name()}' has shape {_dims(shape)}, where its configuration says {_dims(dims)}")
        for text in dict.fromkeys(found):
            print(f"execute failed: {text}", file=sys.stderr)
        return not found

    def _request(self, inputs: dict[str, tuple[str, np.ndarray]], answer: TrialAnswer, number: int) -> InferenceRequest:
        tensors = []
        # As in a server, where an input is the client's own memory.
        Tensor.private_inputs = self._parameter("PRIVATE_INPUTS") == "yes"
        for name, (datatype, array) in inputs.items():
            array = array.copy()
            array.flags.writeable = Tensor.private_inputs
            tensors.append(Tensor._of(name, datatype, array))
        wire = {
            "model": self._names["name"], "version": -1, "id": f"run-{number + 1}", "correlation": 0, "timeout": 0, "flags": 0,
            "parameters": {}, "outputs": [[one["name"]] for one in self._config.get("output", [])], "number": number,
        }  # fmt: skip
        return InferenceRequest._of(wire, tensors, answer)  # type: ignore[arg-type]

    def _execute(self, request: InferenceRequest, answer: TrialAnswer, profile: Any) -> list[InferenceResponse]:
        execute = batch.method(self._model, self._names)
        arguments = [request]
        if self._options["pdb"]:
            returned = _debugged(execute, arguments)
        elif profile is not None:
            returned = profile.runcall(execute, arguments)
        else:
            returned = batch.call(execute, arguments)
        returned = batch.settled(returned)
        is_decoupled = self._config.get("model_transaction_policy", {}).get("decoupled", False)
        if is_decoupled:
            if returned is not None:
                raise Failed(
                    f"a decoupled model sends its responses and returns None; execute returned '{type(returned).__name__}'"
                )
        else:
            batch.check_returned(returned, [request])
            if returned is not None and returned[0] is not None:
                return [returned[0]]
        missing = answer.wait(is_decoupled)
        if missing is not None:
            raise Failed(missing)
        return answer.responses


def _debugged(execute: Callable[..., Any], arguments: list[InferenceRequest]) -> Any:
    """Calls ``execute`` in the debugger, which stops at its first line. Raises :class:`Quit` if the user leaves."""
    import pdb

    class Debugger(pdb.Pdb):
        left = False

        def set_quit(self) -> None:
            self.left = True
            super().set_quit()

    debugger = Debugger()
    returned = debugger.runcall(execute, arguments)
    if debugger.left:
        raise Quit
    return returned


def _datatype(configured: str) -> str:
    datatype = configured.replace("TYPE_", "", 1)
    datatype = "BYTES" if datatype == "STRING" else datatype
    if datatype not in NUMPY_DTYPES:
        raise Refused(f"an input has data_type '{configured}', which no array has")
    return datatype


def _sample(datatype: str, shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
    """A sample array for an input that was not given: numbers below one, small integers, or short strings. It is the same in each run."""
    dtype = NUMPY_DTYPES[datatype]
    if datatype == "BYTES":
        return np.full(shape, _SAMPLE_STRING, np.object_)
    if datatype == "BF16":
        return _upper_half(random.random(shape, np.float32))
    if dtype.kind == "f":
        return random.random(shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 10, shape).astype(dtype)


def _given(name: str, datatype: str, text: str) -> np.ndarray:
    """The array that the user gave: JSON, or ``@`` and the path of a ``.npy`` file."""
    dtype = NUMPY_DTYPES[datatype]
    try:
        found = np.load(text[1:], allow_pickle=False) if text.startswith("@") else np.array(json.loads(text))
        if datatype == "BYTES":
            elements = [one if isinstance(one, bytes) else str(one).encode() for one in found.ravel().tolist()]
            array = np.empty(len(elements), np.object_)
            array[:] = elements
            return array.reshape(found.shape)
        if datatype == "BF16" and found.dtype != dtype:
            return _upper_half(found.astype(np.float32))
        with np.errstate(all="ignore"):
            converted = found.astype(dtype)
            fits = _loses_nothing(found, converted)
    except (OSError, ValueError, TypeError) as error:
        raise Refused(f"input '{name}' is not an array of {datatype}: {error}") from error
    if not fits:
        raise Refused(f"input '{name}' has elements that are no {datatype}: {_elements(found)}")
    return np.asarray(converted)


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether an output may have this shape. A scalar agrees with dimensions of 1 as well."""
    is_scalar = not shape and all(dim == 1 for dim in dims)
    return is_scalar or (len(shape) == len(dims) and all(want in (-1, have) for have, want in zip(shape, dims)))


def _dims(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _loses_nothing(found: np.ndarray, converted: np.ndarray) -> bool:
    """Whether the conversion lost nothing but digits of fractions."""
    if found.dtype.kind == "f" and converted.dtype.kind == "f":
        return bool((np.isfinite(converted) == np.isfinite(found)).all())
    return bool(np.array_equal(converted.astype(found.dtype), found))


def _upper_half(floats: np.ndarray) -> np.ndarray:
    """The elements of BF16, which are the upper halves of floats, as ``uint16``."""
    return (np.ascontiguousarray(floats).view(np.uint32) >> 16).astype(np.uint16)


def _print_responses(responses: Sequence[InferenceResponse]) -> bool:
    """Prints responses. Returns whether none is an error."""
    for number, response in enumerate(responses, start=1):
        which = f"response {number}: " if len(responses) > 1 else ""
        error = response.error()
        if error is not None:
            print(f"{which}the model answered with an error: {error.message()}", file=sys.stderr)
            return False
        for tensor in response.output_tensors():
            device = tensor.on_device
            array = tensor.array() if device is None else device.on_host(NUMPY_DTYPES[tensor.datatype])
            print(f"output  {which}{_shown(tensor.name(), tensor.datatype, array)}")
    if not responses:
        print("the model sent no response")
    return True


def _shown(name: str, datatype: str, array: np.ndarray) -> str:
    return f"{name} {datatype} {list(array.shape)}: {_elements(array)}"


def _elements(array: np.ndarray) -> str:
    return np.array2string(array, threshold=_ELEMENTS_MAX, edgeitems=3, separator=", ", prefix=" " * 8)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _spread(times: Sequence[float]) -> str:
    if not times:
        return ""
    ordered = sorted(times)
    return f"; the next {len(times)}: median {_time(ordered[len(ordered) // 2])}, longest {_time(ordered[-1])}"
