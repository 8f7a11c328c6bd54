"""An MCP server on pipes that does what it is told, and writes down what it gets."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

got, era, *options = sys.argv[1:]
out = threading.Lock()
waiting = {}
answers = {}
answered = threading.Condition()
greeted = threading.Event()


def send(message):
    data = json.dumps(dict(message, jsonrpc="2.0"), ensure_ascii=False).encode() + b"\n"
    with out:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def note(message):
    with open(got, "a") as file:
        file.write(json.dumps(message) + "\n")


def text(words):
    result = {"content": [{"type": "text", "text": words}], "unknown": {"kept": 1.5}}
    return dict(result, resultType="complete") if era == "modern" else result


def ask(method, params):
    key = "ask-%d" % len(answers)
    send({"id": key, "method": method, "params": params})
    with answered:
        while key not in answers:
            answered.wait()
    return answers[key]


def tool(id, name, arguments, params):
    token = params.get("_meta", {}).get("progressToken")
    if name == "echo":
        return text(arguments["text"])
    if name == "environment":
        return text(json.dumps(dict(os.environ)))
    if name == "pid":
        return text(str(os.getpid()))
    if name == "slow":
        waiting[id].wait()
        return None
    if name == "progress":
        for step in [1, 2, 2, 1, 3]:
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
        send({"method": "notifications/progress", "params": {"progressToken": 424242, "progress": 99}})
        for level in ["debug", "info", "error"]:
            send({"method": "notifications/message", "params": {"level": level, "data": level}})
        return text("done")
    if name == "ask":
        if era == "modern":
            if "inputResponses" not in params:
                question = {"method": "elicitation/create", "params": {"message": "name?"}}
                return {"resultType": "input_required", "inputRequests": {"who": question}, "requestState": "s+/="}
            return text(json.dumps([params["inputResponses"], params["requestState"]]))
        return text(json.dumps(ask("elicitation/create", {"message": "name?"})))
    if name == "wrong":
        send({"id": id + 1000, "result": text("somebody else's")})
        return text("mine")
    if name == "big":
        return text("x" * arguments["bytes"])
    if name == "flood":
        for step in range(arguments["count"]):
            send({"method": "notifications/message", "params": {"level": "error", "data": "y" * 1000}})
        return text("after the flood")
    if name == "pieces":
        data = json.dumps({"jsonrpc": "2.0", "id": id, "result": text(arguments["text"])}, ensure_ascii=False)
        with out:
            for byte in data.encode() + b"\n":
                sys.stdout.buffer.write(bytes([byte]))
                sys.stdout.buffer.flush()
        return None
    if name == "noise":
        with out:
            sys.stdout.write("this is not JSON\n\n[1,2]\n")
            sys.stdout.flush()
        return text("after the noise")
    if name == "family":
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        plain = subprocess.Popen(sleep, stdout=subprocess.DEVNULL)
        session = subprocess.Popen(sleep, stdout=subprocess.DEVNULL, start_new_session=True)
        orphan = subprocess.run(
            [sys.executable, "-c", "import subprocess,sys; print(subprocess.Popen(%r, start_new_session=True, "
             "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)" % (sleep,)], capture_output=True, text=True)
        return text("%d %d %d" % (plain.pid, session.pid, int(orphan.stdout)))
    if name == "exit":
        print("about to exit", file=sys.stderr, flush=True)
        os._exit(3)
    return {"error": {"code": -32602, "message": "no such tool", "data": {"tool": name}}}


def answer(message):
    id, method, params = message["id"], message["method"], message.get("params", {})
    if method == "tools/call":
        result = tool(id, params["name"], params.get("arguments", {}), params)
        if result is None:
            return
        if "error" in result:
            return send({"id": id, "error": result["error"]})
        return send({"id": id, "result": result})
    if method == "server/discover":
        if era == "exit":
            os._exit(1)
        if era != "modern":
            return send({"id": id, "error": {"code": -32601, "message": "no such method"}})
        if "dozing" in options:
            greeted.wait()
            time.sleep(0.2)
        return send({"id": id, "result": {"resultType": "complete", "supportedVersions": ["2026-07-28"],
                     "capabilities": {"tools": {"listChanged": True}, "logging": {}}, "ttlMs": 0,
                     "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}}}})
    if method == "initialize" and era != "modern":
        if "silent" in options:
            return
        return send({"id": id, "result": {"protocolVersion": "2025-11-25", "serverInfo": {"name": "scripted"},
                     "capabilities": {"tools": {"listChanged": True}, "logging": {}, "resources": {"subscribe": True}}}})
    if method == "initialize" and "dozing" in options:
        send({"id": id, "error": {"code": -32022, "message": "this is a 2026-07-28 server"}})
        return greeted.set()
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}, "x": [1]} for name in ["echo", "slow"]]
        return send({"id": id, "result": {"tools": tools}})
    if method in ("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
        return send({"id": id, "result": {}})
    if method == "resources/list":
        return send({"id": id, "result": {"resources": []}})
    if method == "subscriptions/listen":
        return send({"method": "notifications/subscriptions/acknowledged", "params": {}})
    send({"id": id, "error": {"code": -32601, "message": "no such method"}})


if "stubborn" in options:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    message = json.loads(line)
    note(message)
    if "method" not in message:
        with answered:
            answers[message["id"]] = message.get("result", message.get("error"))
            answered.notify_all()
    elif message["method"] == "notifications/initialized" and "roots" in options:
        time.sleep(0.1)
        send({"id": "roots", "method": "roots/list"})
    elif "id" in message:
        waiting[message["id"]] = threading.Event()
        threading.Thread(target=answer, args=[message], daemon=True).start()
if "stubborn" in options:
    time.sleep(600)
