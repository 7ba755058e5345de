"""How is a model's class imported, and how does it complete its configuration?"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict

from . import errors, packets, utils
from .batch import call


class NotLoaded(Exception):
    """The file is no model, or the class breaks a rule of its load. The text is for the operator."""


def find(model: packets.Model) -> str:
    """Puts the model's directories on ``sys.path``. Returns the name of the module with its class."""
    stem, ending = os.path.splitext(model["file"])
    if ending != ".py":
        raise NotLoaded(f"Model name must end with '.py'. Model name is \"{model['file']}\".")
    path = packets.class_file(model)
    if not os.path.isfile(path):
        # The file existed when the model was loaded. Python's error would name the module alone.
        raise NotLoaded(f"Python model file not found in '{path}'; put it there again, or load the model anew")
    sys.path += [model["version_dir"], model["model_dir"]]
    errors.FOLDERS[:] = [f"'{folder}'" for folder in (model.get("class_dir"), model["version_dir"], model["model_dir"]) if folder]
    utils._model_dir = model["version_dir"]
    if "class_dir" in model:
        # The class of a backend and the modules beside it come before modules of the interpreter with the same names.
        sys.path.insert(0, model["class_dir"])
        return stem
    return f"{model['version']}.{stem}"


def import_class(module: str) -> Any:
    """Imports the model's class."""
    call(__import__, module)
    return call(getattr, sys.modules[module], "TritonPythonModel")


def completed(made: Any, name: str, config: Dict[str, Any]) -> Dict[str, Any]:
    """The configuration that the class completes. Unchanged if it does not."""
    complete = getattr(made, "auto_complete_config", None)
    if complete is None:
        return config
    found = call(complete, utils.ModelConfig(packets.encode(config)))
    if not isinstance(found, utils.ModelConfig):
        raise NotLoaded(f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object.")
    # Raises an error of the model if a value is not valid JSON.
    call(packets.encode, found.as_dict())
    return found.as_dict()
