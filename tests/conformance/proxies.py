"""How does a test connect through a proxy that names the client?"""

import contextlib
import ipaddress
import socket
import threading

# An address of the loopback that nobody else connects from, so the server can trust it and know others by their users.
PROXY = "127.7.0.1"
TRUSTED = f"--trusted-proxies={PROXY}"
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
# The proxy speaks for itself, or for a client.
LOCAL, CLIENT = 0x20, 0x21
TIMEOUT_S = 60


def header(client: str, command: int = CLIENT, more: bytes = b"") -> bytes:
    """The header of version 2 for this client; `more` is what a proxy adds after the addresses."""
    address = ipaddress.ip_address(client)
    family, here = (0x11, b"\x0a\0\0\1") if address.version == 4 else (0x21, bytes(16))
    rest = address.packed + here + (40000).to_bytes(2, "big") + (8000).to_bytes(2, "big") + more
    return SIGNATURE + bytes([command, family]) + len(rest).to_bytes(2, "big") + rest


def connect(address: str, first: bytes = b"", source: str = PROXY) -> socket.socket:
    """A connection from the address `source`, on which `first` was sent."""
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=TIMEOUT_S, source_address=(source, 0))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(first)
    return made


@contextlib.contextmanager
def proxy(address: str, client: str):
    """The address of a proxy in front of `address`. For the server all its connections come from `client`."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as opened:
        def serve():
            with contextlib.suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    far = connect(address, header(client))
                    opened.callback(shut, near)
                    opened.callback(shut, far)
                    for one, other in ((near, far), (far, near)):
                        threading.Thread(target=carry, args=(one, other), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield "%s:%d" % listener.getsockname()
        finally:
            # A thread that waits in `accept` returns.
            listener.shutdown(socket.SHUT_RDWR)


def carry(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := one.recv(1 << 16):
            other.sendall(part)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
