"""A small backend in another language: it appends every call to a log, which is
its effect, and answers with the number of calls so far. A path that ends in
/slow waits, after the effect, until the file named "go" exists."""
import http.server
import os
import sys
import time

log, = sys.argv[1:]


class Backend(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with open(log, "a") as f:
            f.write("%s %s attempt=%s\n" % (self.path, body.decode(), self.headers.get("Goalkeeper-Attempt", "1")))
            f.flush()
            os.fsync(f.fileno())
        while self.path.endswith("/slow") and not os.path.exists(log + ".go"):
            time.sleep(0.01)
        with open(log) as f:
            answer = ('{"calls": %d}' % len(f.readlines())).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
print(server.server_address[1], flush=True)
server.serve_forever()
