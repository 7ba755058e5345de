"""Which certificates do servers and clients of a test have?"""

import datetime
import hashlib
import os
import ssl

import trustme

HOST = "localhost"


class Certificates:
    """A certificate authority and the files of a server and a client that it signed."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(self.path("root.pem"))
        self.issue("client")
        self.issue("server")

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def issue(self, name: str, ends: "datetime.datetime | None" = None) -> str:
        """A new certificate with its key in place of those before; its fingerprint."""
        made = self.authority.issue_cert(HOST, "127.0.0.1", not_after=ends)
        chain = b"".join(part.bytes() for part in made.cert_chain_pems)
        for ending, text in (("key", made.private_key_pem.bytes()), ("pem", chain)):
            self.put(f"{name}.{ending}", text)
        return fingerprint(ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode()))

    def put(self, name: str, text: bytes) -> None:
        """A whole file at once, as renewing programs do it."""
        fresh = self.path(f"{name}.new")
        with open(fresh, "wb") as out:
            out.write(text)
        os.rename(fresh, self.path(name))

    def flags(self, protocol: str, mutual: bool = False) -> list[str]:
        flags = {"server-cert": "server.pem", "server-key": "server.key"} | ({"root-cert": "root.pem"} if mutual else {})
        use = f"--{protocol}-use-ssl{'-mutual' if mutual else ''}=true"
        return [use, *(f"--{protocol}-{flag}={self.path(name)}" for flag, name in flags.items())]


def fingerprint(certificate: bytes | None) -> str:
    return hashlib.sha256(certificate or b"").hexdigest()
