"""What does a user say about a fleet, and which of it is wrong?

The file is described in docs/fleet.md. Every fault names the key, what it has and what it may have.
"""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import json
import os
import re
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

from nerite._fleet import NAME

BYTES = re.compile(r"(\d+)\s*(|KiB|MiB|GiB|TiB)")
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
BUCKET = re.compile(r"[a-z0-9]+://")
REPLICAS_MAX = 1000
PORT_MAX = 65535
# The proxy sends a unary inference again to another replica, or only a request that no replica got.
RETRIES = ("repeat", "connect-failure")
# The fleet gives these flags of `nerite serve` itself.
OWN_FLAGS = frozenset(
    "http-address http-port grpc-address grpc-port metrics-address metrics-port session-socket parent-pid model-repository "
    "load-model drain-seconds exit-timeout-secs reuse-http-port reuse-grpc-port allow-http allow-grpc allow-metrics "
    "http-use-ssl grpc-use-ssl http-use-ssl-mutual grpc-use-ssl-mutual trusted-proxies "
    "model-control-mode config".split()
)


# The private networks of RFC 1918 and RFC 4193.
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")


class FleetError(Exception):
    """A fleet cannot do what was wanted. The text says why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """How many replicas there are, and by what their number follows the load."""

    min: int
    max: int
    #: Requests that wait in a replica's queues, on average. More add a replica.
    pending: float = 8.0
    #: Milliseconds that a request waits in a queue, on average. More add a replica.
    queue_ms: float = 100.0
    #: Seconds after which a replica that is not needed is removed.
    down_after_s: float = 60.0


@dataclasses.dataclass(frozen=True)
class Resources:
    """What Ray reserves for a replica."""

    cpu: float = 1.0
    gpu: float = 0.0
    memory_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Rollout:
    """How replicas are replaced, one at a time."""

    #: 1: the new replica starts before an old one stops. 0: after it, if there is no room for both.
    surge: int = 1
    #: Seconds in which a new replica must be ready. Otherwise the fleet goes back.
    ready_within_s: float = 120.0
    #: Seconds that a replica serves on after it left the proxies.
    drain_s: int = 3
    #: Seconds after that in which its requests must end.
    exit_s: int = 30


@dataclasses.dataclass(frozen=True)
class Proxy:
    """The proxies, one on each node."""

    address: str = "0.0.0.0"
    http_port: int = 8000
    grpc_port: int = 8001
    retry: str = "repeat"
    #: The largest request. A proxy holds each request until it is answered.
    request_bytes_max: int = 64 << 20
    #: All that a proxy holds. Beyond it, it refuses requests.
    memory_bytes: int = 2 << 30
    #: Paths of a certificate and its key, on each node. Clients use TLS if they are given.
    tls_certificate: str = ""
    tls_key: str = ""
    #: The networks of the nodes. A replica lets their addresses name a client by the PROXY protocol.
    networks: Tuple[str, ...] = PRIVATE


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a fleet is to be."""

    name: str
    #: A folder that every node has, or the address of a bucket.
    model_repository: str
    replicas: Scale
    #: The only models that are loaded. Empty: all of the repository.
    models: Tuple[str, ...] = ()
    resources: Resources = Resources()
    #: Flags of `nerite serve`.
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rollout: Rollout = Rollout()
    proxy: Proxy = Proxy()
    #: Changed by `nerite fleet roll`, so that replicas are replaced though nothing else differs.
    revision: int = 0

    @property
    def is_bucket(self) -> bool:
        return BUCKET.match(self.model_repository) is not None

    @property
    def release(self) -> str:
        """Names what a replica runs. Replicas with another release are replaced."""
        parts = [self.model_repository, self.models, dataclasses.astuple(self.resources), dict(self.flags), self.proxy.networks, self.rollout.drain_s, self.rollout.exit_s, self.revision]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Spec:
        """Reads what :meth:`to_json` wrote."""
        found = json.loads(text)
        parts = {"replicas": Scale, "resources": Resources, "rollout": Rollout, "proxy": Proxy}
        values = {key: parts[key](**value) if key in parts else value for key, value in found.items()}
        proxy = dataclasses.replace(values["proxy"], networks=tuple(values["proxy"].networks))
        return Spec(**{**values, "models": tuple(values["models"]), "proxy": proxy})


def read(source: Union[str, os.PathLike[str], Mapping[str, Any]]) -> Spec:
    """The fleet of a file (YAML or JSON) or of a dict. Raises FleetError."""
    if isinstance(source, Mapping):
        return parse(source, "the fleet")
    import yaml

    path = os.fspath(source)
    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise FleetError(f"'{path}' cannot be read: {error}") from None
    return parse(found, f"'{path}'")


def parse(found: Any, where: str) -> Spec:
    """The fleet of a mapping. ``where`` names it in errors."""
    keys = _Keys(found, where)
    name = keys.text("name")
    if not NAME.fullmatch(name):
        raise FleetError(f"{where}: name is '{name}'; use 1 to 40 of a-z, 0-9 and '-'")
    spec = Spec(
        name=name,
        model_repository=keys.text("model_repository"),
        replicas=_scale(keys),
        models=tuple(keys.texts("models")),
        resources=_resources(keys.part("resources")),
        flags=_flags(keys.part("flags")),
        rollout=_rollout(keys.part("rollout")),
        proxy=_proxy(keys.part("proxy")),
    )
    keys.end()
    if not spec.is_bucket and not os.path.isabs(spec.model_repository):
        raise FleetError(f"{where}: model_repository is '{spec.model_repository}'; give an absolute path that every node has, or a bucket such as s3://bucket/models")
    return spec


def _scale(keys: _Keys) -> Scale:
    replicas, scale = keys.any("replicas", 1), keys.part("scale")
    bounds = _Keys(replicas if isinstance(replicas, Mapping) else {"min": replicas, "max": replicas}, f"{keys.where}: replicas")
    low = bounds.integer("min", 1, 1, REPLICAS_MAX)
    high = bounds.integer("max", low, low, REPLICAS_MAX)
    bounds.end()
    found = Scale(
        min=low,
        max=high,
        pending=scale.number("pending", Scale.pending, 0.1, 1e6),
        queue_ms=scale.number("queue_ms", Scale.queue_ms, 0.1, 1e6),
        down_after_s=scale.number("down_after_s", Scale.down_after_s, 1, 86400),
    )
    scale.end()
    return found


def _resources(keys: _Keys) -> Resources:
    found = Resources(
        cpu=keys.number("cpu", Resources.cpu, 0, 1e4),
        gpu=keys.number("gpu", Resources.gpu, 0, 1e3),
        memory_bytes=keys.bytes("memory", Resources.memory_bytes, 0, 1 << 50),
    )
    keys.end()
    if found.gpu > 1 and found.gpu % 1:
        raise FleetError(f"{keys.where}: gpu is {found.gpu:g}; Ray shares one GPU, or gives whole ones")
    return found


def _flags(keys: _Keys) -> dict[str, Any]:
    flags = {name.removeprefix("--").replace("_", "-"): value for name, value in keys.rest().items()}
    for name in flags:
        if name in OWN_FLAGS:
            raise FleetError(f"{keys.where}: the fleet gives --{name} itself; take it out")
    return flags


def _rollout(keys: _Keys) -> Rollout:
    found = Rollout(
        surge=keys.integer("surge", Rollout.surge, 0, 1),
        ready_within_s=keys.number("ready_within_s", Rollout.ready_within_s, 1, 86400),
        drain_s=keys.integer("drain_s", Rollout.drain_s, 0, 3600),
        exit_s=keys.integer("exit_s", Rollout.exit_s, 0, 3600),
    )
    keys.end()
    return found


def _proxy(keys: _Keys) -> Proxy:
    tls = keys.part("tls")
    found = Proxy(
        address=keys.text("address", Proxy.address),
        http_port=keys.integer("http_port", Proxy.http_port, 1, PORT_MAX),
        grpc_port=keys.integer("grpc_port", Proxy.grpc_port, 1, PORT_MAX),
        retry=keys.text("retry", Proxy.retry),
        request_bytes_max=keys.bytes("request_bytes_max", Proxy.request_bytes_max, 1 << 10, 1 << 31),
        memory_bytes=keys.bytes("memory", Proxy.memory_bytes, 64 << 20, 1 << 50),
        tls_certificate=tls.text("certificate", ""),
        tls_key=tls.text("key", ""),
        networks=tuple(keys.texts("networks", Proxy.networks)),
    )
    tls.end()
    keys.end()
    if found.retry not in RETRIES:
        raise FleetError(f"{keys.where}: retry is '{found.retry}'; it is one of {', '.join(RETRIES)}")
    for network in found.networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise FleetError(f"{keys.where}: networks has '{network}': {error}") from None
    if found.http_port == found.grpc_port:
        raise FleetError(f"{keys.where}: http_port and grpc_port are both {found.http_port}")
    if bool(found.tls_certificate) != bool(found.tls_key):
        raise FleetError(f"{keys.where}: tls has a certificate or a key alone; give both")
    return found


class _Keys:
    """The keys of a mapping, each read once. What nobody has read at the end is a fault."""

    def __init__(self, found: Any, where: str):
        if found is None:
            found = {}
        if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
            raise FleetError(f"{where} has {found!r} where it must have keys with values")
        self._left = dict(found)
        self._known: list[str] = []
        self.where = where

    def any(self, key: str, default: Any) -> Any:
        self._known.append(key)
        return self._left.pop(key, default)

    def part(self, key: str) -> _Keys:
        return _Keys(self.any(key, None), f"{self.where}: {key}")

    def rest(self) -> dict[str, Any]:
        found, self._left = self._left, {}
        return found

    def text(self, key: str, default: Optional[str] = None) -> str:
        value = self.any(key, default)
        if not isinstance(value, str) or (default is None and not value):
            self._refuse(key, value, "a text")
        return str(value)

    def texts(self, key: str, default: Sequence[str] = ()) -> list[str]:
        value = self.any(key, list(default))
        if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) and one for one in value):
            self._refuse(key, value, "a list of texts")
        return list(value)

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self.any(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            self._refuse(key, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        value = self.any(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._refuse(key, value, f"an integer from {low} to {high}")
        return int(value)

    def bytes(self, key: str, default: int, low: int, high: int) -> int:
        value = self.any(key, default)
        found = BYTES.fullmatch(str(value)) if not isinstance(value, bool) else None
        size = int(found[1]) * UNITS[found[2]] if found is not None else -1
        if not low <= size <= high:
            self._refuse(key, value, f"a number of bytes from {low} to {high}, such as 64MiB")
        return size

    def end(self) -> None:
        """Refuses keys that nobody knows."""
        for key in self._left:
            raise FleetError(f"{self.where} has the key '{key}', which is not one of {', '.join(sorted(self._known))}")

    def _refuse(self, key: str, value: Any, wanted: str) -> None:
        has = "is missing" if value is None else f"is {value!r}"
        raise FleetError(f"{self.where}: {key} {has}; it must be {wanted}")
