"""Which Python models do the tests load?

The sources in python_models/ are models as anybody writes them, the same for every server. `models` are those that load;
`BROKEN` those that must not, each with what it must say.
"""

import pathlib
from dataclasses import dataclass

import catalogue
from catalogue import Model, Tensor

SOURCES = pathlib.Path(__file__).resolve().parent / "python_models"
RUNTIME = 'backend: "python"'
DATATYPES = tuple(catalogue.DATATYPES)
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def tensors(**named: str) -> tuple[Tensor, ...]:
    """Vectors of any length: `tensors(INPUT0="FP32")`."""
    return tuple(Tensor(name, datatype, (-1,)) for name, datatype in named.items())


def python(name: str, source: str, inputs, outputs, **more) -> Model:
    return Model(name, "python", inputs, outputs, source=(SOURCES / f"{source}.py").read_text(), **more)


def vector(name: str, source: str, datatype: str = "FP32", **more) -> Model:
    return python(name, source, tensors(INPUT0=datatype), tensors(OUTPUT0=datatype), **more)


def parameters(**values: str) -> str:
    rows = (f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items())
    return "".join(rows)


def instances(count: int) -> str:
    return f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n"


def models() -> list[Model]:
    every = tuple(Tensor(f"INPUT_{one}", one, (-1,), optional=True) for one in DATATYPES)
    return [
        vector("py_identity", "identity"),
        vector("py_strings", "identity", "BYTES"),
        python("py_types", "identity", every, tuple(Tensor(f"OUTPUT_{one}", one, (-1,)) for one in DATATYPES)),
        vector("py_waits", "identity", extra=parameters(wait_ms="400")),
        python("py_add_sub", "add_sub", *catalogue.pair("INT32", (16,)), max_batch=8),
        python(
            "py_batching", "batching", tensors(INPUT0="FP32"),
            (Tensor("SIZE", "INT32", (1,)), Tensor("ROWS", "INT32", (1,)), Tensor("TWICE", "FP32", (-1,))),
            max_batch=8, extra="dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 1000000 }\n",
        ),
        python("py_facts", "facts", tensors(INPUT0="FP32"), tensors(FACTS="BYTES")),
        python("py_speaks", "speaks", tensors(LEVEL="BYTES", TEXT="BYTES"), tensors(SAID="BYTES")),
        python("py_senders", "senders", tensors(ACTION="BYTES"), tensors(SAID="BYTES")),
        vector("py_coroutine", "coroutine"),
        python(
            "py_actions", "actions", (*tensors(ACTION="BYTES"), Tensor("NUMBERS", "FP32", (-1,), optional=True)),
            tensors(SAID="BYTES", MORE="FP32"),
        ),
        python("py_sleeping", "sleeping", tensors(MS="INT32"), tensors(WAS="BYTES")),
        python("py_large", "large", tensors(SIZE="INT64"), tensors(MADE="UINT8")),
        python("py_dlpack", "dlpack", tensors(INPUT0="FP32"), tensors(OUTPUT0="FP32", OUTPUT1="FP32")),
        python("py_meeting", "meeting", tensors(WHERE="BYTES"), tensors(MET="BYTES"), extra=instances(2)),
        vector("py_renamed", "identity", extra='default_model_filename: "renamed.py"\n'),
        python("py_auto", "auto_complete", (), ()),
        python(
            "py_decoupled", "decoupled", (*tensors(CODE="BYTES"), Tensor("NUMBERS", "FP32", (-1,), optional=True)),
            tensors(SAID="BYTES", MORE="FP32"), extra=DECOUPLED,
        ),
        python(
            "py_asking", "asking", (*tensors(CODE="BYTES"), Tensor("NUMBERS", "FP32", (-1,), optional=True)), tensors(SAID="BYTES"),
            extra=instances(2),
        ),
        vector("py_asking_coroutine", "asking_coroutine"),
        python("py_decoupled_coroutine", "decoupled_coroutine", tensors(WAITS_MS="INT32"), tensors(WAITED_MS="INT32"), extra=DECOUPLED),
    ]


def named(name: str) -> Model:
    return next(one for one in models() if one.name == name)


def file_name(model: Model) -> str:
    return "renamed.py" if "default_model_filename" in model.extra else "model.py"


def put(repository: pathlib.Path, model: Model) -> None:
    """Writes one model; a model without inputs completes its configuration itself."""
    for version in model.versions:
        folder = repository / model.name / str(version)
        folder.mkdir(parents=True)
        (folder / file_name(model)).write_text(model.source)
    if model.inputs:
        (repository / model.name / "config.pbtxt").write_text(catalogue.config_text(model, RUNTIME))


# ---------------------------------------------------------------------------------------------- models that do not load


@dataclass(frozen=True)
class Broken:
    """A model.py, or None; how the reason why it does not load begins, and the line of the traceback that must be there."""

    source: str | None
    reason: str
    at: str = ""
    extra: str = ""


HEAD = "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
EXECUTE = "    def execute(self, requests):\n        return []\n"
COMPLETE = HEAD + "    @staticmethod\n    def auto_complete_config(config):\n        BODY\n\n" + EXECUTE
INITIALIZE = HEAD + "    def initialize(self, args):\n        BODY\n\n" + EXECUTE
IN_IMPORT, IN_INITIALIZE, IN_COMPLETION = (
    f"model.py({line}): {place}\n" for line, place in ((1, "<module>"), (6, "initialize"), (7, "auto_complete_config"))
)
COMPLETES = "auto-complete-config function for model"


def complete(*lines: str) -> str:
    return COMPLETE.replace("BODY", "\n        ".join([*lines, "return config"]))


def initialize(line: str) -> str:
    return INITIALIZE.replace("BODY", line)


def add(kind: str, name: str = "A", **more) -> str:
    """A line that adds an input or an output."""
    return f"config.add_{kind}({ {'name': name} | more!r})"


BROKEN: dict[str, Broken] = {
    "py_syntax": Broken("class TritonPythonModel:\n    def execute(self requests):\n", "SyntaxError: invalid syntax"),
    "py_raises_in_import": Broken("raise RuntimeError('no import today')\n", "RuntimeError: no import today", IN_IMPORT),
    "py_lacks_a_module": Broken(
        "import a_module_that_nobody_has\n", "ModuleNotFoundError: No module named 'a_module_that_nobody_has'", IN_IMPORT),
    "py_no_class": Broken(
        "class OtherModel:\n" + EXECUTE, "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
    "py_raises_in_init": Broken(
        HEAD + "    def __init__(self):\n        raise KeyError('init')\n\n" + EXECUTE, "KeyError: 'init'",
        "model.py(6): __init__\n"),
    "py_raises_in_initialize": Broken(
        initialize("raise ValueError('no start today')"), "ValueError: no start today", IN_INITIALIZE),
    "py_refuses_in_initialize": Broken(
        initialize("raise pb_utils.TritonModelException('not on this machine')"),
        "TritonModelException: not on this machine", IN_INITIALIZE),
    "py_initialize_without_args": Broken(
        HEAD + "    def initialize(self):\n        pass\n\n" + EXECUTE,
        "TypeError: TritonPythonModel.initialize() takes 1 positional argument but 2 were given"),
    "py_exits_in_initialize": Broken(
        initialize("import os; os._exit(5)"), "Stub process 'py_exits_in_initialize_0' is not healthy."),
    "py_raises_in_completion": Broken(
        complete("raise ValueError('no configuration today')"), "ValueError: no configuration today", IN_COMPLETION),
}

# The reference server waits for ever for these to start.
SILENT: dict[str, Broken] = {
    "py_missing": Broken(None, ""),
    "py_file_name": Broken(
        HEAD + EXECUTE, "Model name must end with '.py'. Model name is \"model.txt\".",
        extra='default_model_filename: "model.txt"\n'),
}

# Those that have no configuration, and fail to make one.
UNCOMPLETED: dict[str, Broken] = {
    "py_completes_nothing": Broken(
        complete("return None"),
        "auto_complete_config function in model 'py_completes_nothing' must return a valid pb.ModelConfig object."),
    "py_input_without_dims": Broken(
        complete(add("input", data_type="TYPE_FP32")),
        f"ValueError: input 'A' in {COMPLETES} 'py_input_without_dims' is missing 'dims' property.", IN_COMPLETION),
    "py_input_with_more": Broken(
        complete(add("input", data_type="TYPE_FP32", dims=[1], more=1)),
        f"ValueError: input 'A' in {COMPLETES} 'py_input_with_more' contains property other than "
        "'name', 'data_type', 'dims' and 'optional'.", IN_COMPLETION),
    "py_output_without_type": Broken(
        complete(add("output", dims=[1])),
        f"ValueError: output 'A' in {COMPLETES} 'py_output_without_type' is missing 'data_type' property.", IN_COMPLETION),
    "py_output_with_more": Broken(
        complete(add("output", data_type="TYPE_FP32", dims=[1], optional=True)),
        f"ValueError: output 'A' in {COMPLETES} 'py_output_with_more' contains property other than "
        "'name', 'data_type' and 'dims'.", IN_COMPLETION),
    "py_unknown_policy": Broken(
        complete("config.set_model_transaction_policy({'else': True})"),
        f"ValueError: model transaction property in {COMPLETES} 'py_unknown_policy' contains property other than "
        "'decoupled'.", IN_COMPLETION),
    "py_two_types": Broken(
        complete(add("input", data_type="TYPE_FP32", dims=[1]), add("input", data_type="TYPE_INT8", dims=[1])),
        "ValueError: unable to load model 'py_two_types', configuration expects datatype TYPE_FP32 for input 'A', model "
        "provides TYPE_INT8", "model.py(8): auto_complete_config\n"),
}

# Those whose class completes a configuration that says otherwise.
CONTRADICTED: dict[str, Broken] = {
    "py_smaller_batch": Broken(
        complete("config.set_max_batch_size(2)"),
        f"ValueError: configuration specified max_batch_size 4, but in {COMPLETES} 'py_smaller_batch' specified "
        "max_batch_size 2", IN_COMPLETION),
    "py_other_dims": Broken(
        complete(add("input", "INPUT0", data_type="TYPE_FP32", dims=[3])),
        "ValueError: model 'py_other_dims', tensor 'INPUT0': the model expects dims [3] but the model configuration "
        "specifies dims [-1]", IN_COMPLETION),
    "py_other_type": Broken(
        complete(add("output", "OUTPUT0", data_type="TYPE_INT8", dims=[-1])),
        "ValueError: unable to load model 'py_other_type', configuration expects datatype TYPE_FP32 for output 'OUTPUT0', "
        "model provides TYPE_INT8", IN_COMPLETION),
}

UNLOADABLE = BROKEN | UNCOMPLETED | CONTRADICTED


def put_broken(repository: pathlib.Path, name: str) -> None:
    broken = (UNLOADABLE | SILENT)[name]
    (repository / name / "1").mkdir(parents=True)
    if broken.source is not None:
        (repository / name / "1" / "model.py").write_text(broken.source)
    if name not in UNCOMPLETED:
        batch = 4 if name in CONTRADICTED else 0
        model = Model(name, "python", tensors(INPUT0="FP32"), tensors(OUTPUT0="FP32"), max_batch=batch, extra=broken.extra)
        (repository / name / "config.pbtxt").write_text(catalogue.config_text(model, RUNTIME))
