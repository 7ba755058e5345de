"""Where does pip find its registry on this machine, and does a failure mean that it reaches none?"""

import ast
import configparser
import io
import pathlib
import subprocess
import sys

# What pip says where it reaches no registry.
NO_NETWORK = (
    "Failed to establish a new connection", "Temporary failure in name resolution", "Network is unreachable", "Cannot connect to proxy",
    "ConnectTimeoutError", "Read timed out", "ReadTimeoutError",
)  # fmt: skip
# The settings that say where packages come from. The others are of this machine's pip, and an older pip refuses some.
PLACES = (
    "index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "cert", "client-cert", "proxy", "timeout", "default-timeout", "retries",
)  # fmt: skip
ENVIRONMENT = ":env:"


def is_out_of_reach(output: str) -> bool:
    return any(cause in output for cause in NO_NETWORK)


def settings() -> dict[tuple[str, str], str]:
    """Where packages come from, by section and name: from all of pip's files and variables."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    return read(done.stdout)


def read(listed: str) -> dict[tuple[str, str], str]:
    """The output of `pip config list`. A variable comes before a file, so it replaces the setting in all sections."""
    found: dict[tuple[str, str], str] = {}
    variables: dict[tuple[str, str], str] = {}
    for line in listed.splitlines():
        key, is_setting, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if is_setting and name in PLACES:
            into, section = (variables, "global") if section == ENVIRONMENT else (found, section)
            into[section, name] = str(ast.literal_eval(value))
    replaced = {name for _, name in variables}
    return {key: value for key, value in found.items() if key[1] not in replaced} | variables


def configuration(settings: dict[tuple[str, str], str]) -> str:
    """A file for pip that says the same."""
    written = configparser.RawConfigParser()
    for (section, name), value in settings.items():
        if not written.has_section(section):
            written.add_section(section)
        written.set(section, name, value)
    text = io.StringIO()
    written.write(text)
    return text.getvalue()


def local_paths(settings: dict[tuple[str, str], str]) -> list[pathlib.Path]:
    """The files and folders of this machine that the settings name: certificates, folders of wheels."""
    words = [word.removeprefix("file://") for value in settings.values() for word in value.split()]
    return sorted({path for path in map(pathlib.Path, words) if path.is_absolute() and path.exists()})
