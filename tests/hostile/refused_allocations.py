"""Does a run of ONNX Runtime end with an error if one of its allocations is refused?

This program runs the cases of a file, beginning at an index, and prints a line of JSON for each. `test_parallel_allocations.py` starts it, and starts it
again if it dies.
"""

import ctypes
import json
import pathlib
import pickle
import sys

import onnxruntime

THREADS = 4
PAUSE_US = 1000
# Of many allocations in a run, the first ones and the last are refused.
REFUSALS_MAX = 8
RUNS = 3


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    # So each tensor has an allocation of its own.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def refusals(count: int) -> list[int]:
    return list(range(count)) if count <= REFUSALS_MAX else [*range(REFUSALS_MAX - 1), count - 1]


def outcome(hook, model: bytes, feeds: dict) -> dict:
    """How many allocations a run made, how many of them on other threads, and those whose refusal was no error of the run."""
    try:
        session = session_of(model)
        session.run(None, feeds)
    except Exception as error:  # noqa: BLE001 - whatever the library does not support
        return {"unsupported": str(error)[-200:]}
    on_others = 0
    for _ in range(RUNS):
        hook.begin_counting(-1, PAUSE_US)
        session.run(None, feeds)
        count = hook.end_counting()
        on_others = max(on_others, hook.counted_on_other_threads())
    without_error = []
    for index in refusals(count):
        # On a busy machine, a thread of the pool may begin its part of a loop in a later run only.
        if on_others:
            break
        hook.begin_counting(index, PAUSE_US)
        try:
            session.run(None, feeds)
            refused = False
        except Exception as error:  # noqa: BLE001 - the library has several types for it
            refused = "bad_alloc" in str(error)
        finally:
            hook.end_counting()
        on_others = hook.counted_on_other_threads()
        if not refused:
            without_error.append(index)
    # An allocation on another thread is never refused, so its run ends without an error.
    return {"allocations": count, "on_other_threads": on_others, "without_error": [] if on_others else without_error}


def main() -> None:
    file, first = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    onnxruntime.set_default_logger_severity(4)
    hook = ctypes.CDLL(None)
    for _, model, feeds in pickle.loads(file.read_bytes())[first:]:
        print(json.dumps(outcome(hook, model, feeds)), flush=True)


if __name__ == "__main__":
    main()
