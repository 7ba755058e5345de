"""What is a program that was written for tritonclient, with only the import changed?

A plugin for pytest (``-p in_place``): tests that import ``tritonclient.http`` and ``.grpc``, or their ``.aio``, get nerite's.
"""

import importlib
import sys

import tritonclient


# nerite's modules are made from tritonclient's, so these come first, all of them.
NAMES = ("http", "http.aio", "grpc", "grpc.aio")
for _name in NAMES:
    importlib.import_module(f"tritonclient.{_name}")
for _name in NAMES:
    importlib.import_module(f"nerite.{_name}")
for _name in NAMES:
    sys.modules[f"tritonclient.{_name}"] = sys.modules[f"nerite.{_name}"]
for _name in ("http", "grpc"):
    setattr(tritonclient, _name, sys.modules[f"nerite.{_name}"])
