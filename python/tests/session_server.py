"""What does the server's end of a session socket do, as far as the client's tests need it?"""

import contextlib
import fcntl
import os
import socket
import threading

from nerite import _protobuf

F_ADD_SEALS, SEALS = 1033, 0x1 | 0x2 | 0x4


class SessionServer:
    """Serves sessions at a path, one thread each. Its attributes say how to misbehave."""

    def __init__(self, path):
        self.path = str(path)
        self.seals = SEALS
        self.refuse = None  # (code, message)
        self.rejection = None  # (code, message), before anything is read
        self.shrink_to = None
        self.returned: list[str] = []
        self.hellos: list[dict] = []
        self.ended = 0
        self.lent = 0
        self.idle: list[tuple[str, int]] = []
        self.memory: dict[str, int] = {}
        self.sockets: list[socket.socket] = []
        self.forget: list[str] = []
        self.changed = threading.Condition()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def wait(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, timeout=60)

    def hang_up(self):
        # A client may come back before this loop ends. Its new connection stays.
        for one in list(self.sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def end_all(self, code, message):
        for one in self.sockets:
            self._last_word(one, code, message)
        self.hang_up()

    @staticmethod
    def _last_word(connection, code, message):
        connection.send(_protobuf.encode([(4, _protobuf.encode([(1, code), (2, message)]))]))

    def close(self):
        self.listener.close()
        self.hang_up()
        for descriptor in self.memory.values():
            os.close(descriptor)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self.listener.accept()
                if self.rejection is not None:
                    with accepted:
                        self._last_word(accepted, *self.rejection)
                    continue
                self.sockets.append(accepted)
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError):
            while packet := connection.recv(1 << 16):
                self._take(connection, packet)
        with self.changed:
            self.ended += 1
            self.changed.notify_all()

    def _take(self, connection, packet):
        number, call = 0, None
        for field, value in _protobuf.decode(packet):
            if field == 1:
                number = value
            elif field == 2:
                with self.changed:
                    self.returned.append(value.decode())
                    self.idle.append((value.decode(), os.fstat(self.memory[value.decode()]).st_size))
                    self.changed.notify_all()
            else:
                call = field, dict(_protobuf.decode(value))
        if number == 0:
            return
        forgotten = [(2, name) for name in self.forget]
        self.forget = []
        if self.refuse is not None:
            code, message = self.refuse
            answer = (4, _protobuf.encode([(1, code), (2, message)]))
            connection.send(_protobuf.encode([(1, number), answer]))
        elif call[0] == 3:
            self.hellos.append(call[1])
            connection.send(_protobuf.encode([(1, number), (6, _protobuf.encode([(1, 1), (2, "test")]))]))
        else:
            # An answer to nobody's question first: a client must pass over it.
            connection.send(_protobuf.encode([(1, 0), (5, b"")]))
            self._lend(connection, number, call[1][1], forgotten)

    def _lend(self, connection, number, byte_size, forgotten):
        self.lent += 1
        for index, (name, size) in enumerate(self.idle):
            if size >= byte_size and (2, name) not in forgotten:
                del self.idle[index]
                lease = _protobuf.encode([(1, name), (2, size), (3, 0)])
                connection.send(_protobuf.encode([(1, number), *forgotten, (7, lease)]))
                return
        name = f"lease-{self.lent}-{os.urandom(4).hex()}"
        descriptor = os.memfd_create(name, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(descriptor, self.shrink_to or byte_size)
        fcntl.fcntl(descriptor, F_ADD_SEALS, self.seals)
        self.memory[name] = descriptor
        lease = _protobuf.encode([(1, name), (2, byte_size), (3, 1)])
        socket.send_fds(connection, [_protobuf.encode([(1, number), *forgotten, (7, lease)])], [descriptor])
