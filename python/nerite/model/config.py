"""How can a model complete its configuration before it is loaded?"""

from __future__ import annotations

import json
from typing import Any


class ModelConfig:
    """The present configuration. Methods add settings. A setting that contradicts the author's configuration is an error."""

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """The configuration itself."""
        return self._model_config

    def _who(self) -> str:
        return f"auto-complete-config function for model '{self._model_config['name']}'"

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets the largest batch. It must not be smaller than in the configuration."""
        said = self._model_config.get("max_batch_size", 0)
        if said > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {said}, but in {self._who()} specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enables dynamic batching. It is an error if another scheduler is configured."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but {self._who()} "
                    "tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:
        """Adds an input: ``name``, ``data_type`` (``TYPE_FP32``), ``dims``, and optionally ``optional``."""
        self._add("input", input, ("name", "data_type", "dims", "optional"), "'name', 'data_type', 'dims' and 'optional'")

    def add_output(self, output: dict[str, Any]) -> None:
        """Adds an output: ``name``, ``data_type`` (``TYPE_FP32``), ``dims``."""
        self._add("output", output, ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")

    def _add(self, kind: str, given: dict[str, Any], properties: tuple[str, ...], listed: str) -> None:
        """Merges an input or output by name."""
        for one in given:
            if one not in properties:
                raise ValueError(f"{kind} '{given['name']}' in {self._who()} contains property other than {listed}.")
        for one in ("name", "data_type", "dims"):
            if one not in given:
                which = f"{kind} '{given['name']}'" if one != "name" else kind
                raise ValueError(f"{which} in {self._who()} is missing '{one}' property.")
        known = self._model_config.setdefault(kind, [])
        for said in known:
            if said["name"] == given["name"]:
                self._check(kind, said, given)
                said.update(given)
                return
        known.append(given)

    def _check(self, kind: str, said: dict[str, Any], given: dict[str, Any]) -> None:
        """Raises an error if the model contradicts the configuration."""
        model, name = self._model_config["name"], given["name"]
        if said.get("data_type", "TYPE_INVALID") not in ("TYPE_INVALID", given["data_type"]):
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype {said['data_type']} for {kind} '{name}', "
                f"model provides {given['data_type']}"
            )
        for property, is_said in (("dims", bool(said.get("dims"))), ("optional", "optional" in said and "optional" in given)):
            if is_said and said[property] != given[property]:
                raise ValueError(
                    f"model '{model}', tensor '{name}': the model expects {property} {given[property]} "
                    f"but the model configuration specifies {property} {said[property]}"
                )

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Sets whether the model is decoupled. It must not differ from the configuration."""
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(f"model transaction property in {self._who()} contains property other than 'decoupled'.")
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        if policy.get("decoupled", transaction_policy_dict["decoupled"]) != transaction_policy_dict["decoupled"]:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._model_config['name']}', "
                f"which is already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = transaction_policy_dict["decoupled"]
