"""How do nerite servers on several machines become one service?

    from nerite import fleet

    fleet.up("fleet.yaml")              # replicas on the nodes of a Ray cluster, and an Envoy on each node in front of them
    print(fleet.status("digits"))
    fleet.roll("fleet.yaml")            # the new version, one replica at a time, with no request lost
    fleet.down("digits")

Ray starts, places and restarts what runs. Tensors never pass through Ray: clients reach a proxy on any node, or with
``nerite.connect("fleet:digits")`` the shared memory of a replica on their own host. The command is ``nerite fleet``. docs/fleet.md describes both.
Needs ``pip install nerite[fleet]``.
"""

from __future__ import annotations

from nerite.fleet._operate import down, roll, status, up
from nerite.fleet._spec import FleetError, Spec, read

__all__ = ["FleetError", "Spec", "down", "read", "roll", "status", "up"]
