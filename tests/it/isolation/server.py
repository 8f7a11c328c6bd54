"""An MCP server on pipes that harms its calls until it is told to go on, and notes in a folder how far it has come."""

import json
import os
import signal
import sys
import threading
import time

folder, *options = sys.argv[1:]
out = threading.Lock()
going = threading.Event()


def write(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def send(message):
    with out:
        write(json.dumps(dict(message, jsonrpc="2.0")).encode() + b"\n")


def note(name):
    # In one step: whoever sees the name sees what is in it.
    path = os.path.join(folder, name)
    with open(path + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)


def text(words):
    return {"content": [{"type": "text", "text": words}]}


def tool(id, name, arguments):
    if name == "echo":
        return text(arguments["text"])
    if name == "go":
        going.set()
        return text("going")
    if name == "stop":
        note("stop")
        # This very thread, which would go on a little if another one took the signal.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return text("went on")
    if name == "huge":
        with out:
            write(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "' % id)
            for _ in range(100):
                write(b"x" * (1 << 20))
            note("huge")
            going.wait()
            write(b'"}]}}\n')
        return None
    if name == "flood":
        count = 0
        while not going.is_set():
            send({"method": "notifications/message", "params": {"level": "error", "data": "y" * 1000}})
            send({"method": "notifications/tools/list_changed"})
            send({"id": "question-%d" % count, "method": "ping"})
            send({"id": 1 << 40, "result": {}})
            count += 1
            if count == 10000:
                note("flood")
        return text("after the flood")


def answer(message):
    id, method, params = message["id"], message["method"], message.get("params", {})
    if method == "initialize":
        if "silent" in options:
            note("silent")
            while not os.path.exists(os.path.join(folder, "speak")):
                time.sleep(0.05)
        return send({"id": id, "result": {"protocolVersion": "2025-11-25", "serverInfo": {"name": "bad", "version": "1"},
                     "capabilities": {"tools": {"listChanged": True}}}})
    if method == "ping":
        return send({"id": id, "result": {}})
    if method == "tools/list":
        names = ["echo", "go", "stop", "huge", "flood"]
        return send({"id": id, "result": {"tools": [{"name": it, "inputSchema": {"type": "object"}} for it in names]}})
    if method == "tools/call":
        result = tool(id, params["name"], params.get("arguments", {}))
        return result and send({"id": id, "result": result})
    send({"id": id, "error": {"code": -32601, "message": "no such method"}})


for line in sys.stdin:
    message = json.loads(line)
    if "method" in message and "id" in message:
        threading.Thread(target=answer, args=[message], daemon=True).start()
