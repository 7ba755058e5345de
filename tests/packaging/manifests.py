"""What is in the files for Kubernetes, and what does kustomize make of them with a patch?"""

import pathlib

import yaml

FOLDER = pathlib.Path(__file__).resolve().parent.parent.parent / "packaging" / "kubernetes"
PATCHES = ("bucket", "client", "tls", "tokens")
# By which property the elements of a list belong together. Other lists are replaced.
KEYS = {"containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}
# The lines of envoy.yaml that TLS needs.
TLS_MARK = "# TLS: "


def documents(name: str, is_tls: bool = False) -> list[dict]:
    text = (FOLDER / name).read_text()
    return list(yaml.safe_load_all(text.replace(TLS_MARK, "") if is_tls else text))


def of_kind(name: str, kind: str) -> dict:
    """For files that have one object of the kind."""
    [found] = [one for one in documents(name) if one["kind"] == kind]
    return found


def deployment(*patches: str) -> dict:
    """The deployment of the servers with these patches."""
    found = of_kind("nerite.yaml", "Deployment")
    for one in patches:
        [patch] = documents(f"{one}.yaml")
        found = merged(found, patch)
    return found


def server_of(found: dict) -> dict:
    [server] = [one for one in found["spec"]["template"]["spec"]["containers"] if one["name"] == "nerite"]
    return server


def merged(value: dict, patch: dict) -> dict:
    """A strategic merge: mappings are merged, some lists by a key, and null takes away."""
    made = {name: one for name, one in value.items() if patch.get(name, "") is not None}
    for name, one in patch.items():
        if isinstance(one, dict):
            made[name] = merged(made.get(name, {}), one)
        elif isinstance(one, list) and name in KEYS:
            made[name] = merged_lists(made.get(name, []), one, KEYS[name])
        elif one is not None:
            made[name] = one
    return made


def merged_lists(value: list[dict], patch: list[dict], key: str) -> list[dict]:
    made = {one[key]: one for one in value}
    for one in patch:
        made[one[key]] = merged(made.get(one[key], {}), one)
    return list(made.values())
