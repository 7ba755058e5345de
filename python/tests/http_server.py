"""What does a server for HTTP do, as far as the client's tests need it?"""

import collections
import http.server
import json
import threading

TENSOR = {"datatype": "INT32", "shape": [-1]}


class HttpServer:
    """Has one model, ``counts``, that answers 7. ``then`` says what becomes of the next inferences, by default they are answered:

    ``close``: it is read, and the connection is closed. ``head`` and ``body``: the answer ends within its head or its body. ``idle``: it is answered, and
    the connection is closed after that, without a word in the answer.
    """

    def __init__(self):
        self.then = collections.deque()
        #: The inferences that were read as a whole.
        self.received = 0
        self.parameters = {}
        self.closed = threading.Semaphore(0)
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                tensors = {"inputs": [{"name": "IN", **TENSOR}], "outputs": [{"name": "OUT", **TENSOR}]}
                self.say({"name": "counts", "versions": ["1"], "platform": "", "extensions": [], **tensors})

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                server.received += 1
                end = server.then.popleft() if server.then else ""
                self.close_connection = bool(end)
                if end != "close":
                    output = {"name": "OUT", "datatype": "INT32", "shape": [1], "data": [7]}
                    self.say({"model_name": "counts", "model_version": "1", "parameters": server.parameters, "outputs": [output]}, end)

            def say(self, answer, end=""):
                body = json.dumps(answer).encode()
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                self.wfile.write({"head": head[:20], "body": head + body[:20]}.get(end, head + body))

            def finish(self):
                super().finish()
                self.connection.close()
                server.closed.release()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
