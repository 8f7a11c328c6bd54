"""A scripted stand-in for the Anthropic Messages API, streaming and not.

The plan is a list of [tool name, input]; each turn the next entry is answered as a tool_use, after the last one comes a
text that ends the turn. `{{N}}` in an input stands for the text that the N-th entry's tool answered. A tool that is not
in the request's `tools` yet is first asked for with ToolSearch (Claude Code defers MCP tools), when that tool is offered."""
import http.server
import json
import re
import secrets

from common import serve

MODEL = "claude-sonnet-4-5"


class ScriptedModel:
    def __init__(self, plan):
        self.plan, self.turn, self.searched = list(plan), 0, set()
        self.results = []  # what the tools answered, as the model saw it
        self.asked = []  # ids of the plan's calls, in its order
        self.run = secrets.token_hex(8)  # ids never repeat, as a real model's do not
        self.messages = 0
        handler = type("Handler", (Handler,), {"model": self})
        self.server = serve(handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def reply(self, request):
        """The content and the stop reason of the next message."""
        # All that is in the conversation: the last message need not be the one with the result.
        contents = [m.get("content") for m in request.get("messages") or [] if isinstance(m.get("content"), list)]
        results = [c for content in contents for c in content if isinstance(c, dict) and c.get("type") == "tool_result"]
        if len(results) > len(self.results):
            self.results = results
        tools = [tool.get("name") for tool in request.get("tools") or []]
        if not tools or self.turn >= len(self.plan):
            return [{"type": "text", "text": "Done."}], "end_turn"
        name, arguments = self.plan[self.turn]
        call = f"toolu_{self.run}{self.messages:04d}"
        if name not in tools and "ToolSearch" in tools and name not in self.searched:
            self.searched.add(name)
            name, arguments = "ToolSearch", {"query": f"select:{name}", "max_results": 5}
        else:
            self.turn += 1
            self.asked.append(call)
            arguments = self.filled(arguments)
        return [{"type": "tool_use", "id": call, "name": name, "input": arguments}], "tool_use"

    def filled(self, arguments):
        """Each `{{N}}` replaced by what the N-th call answered: the only way from one hand to another is the model."""
        text = lambda match: self.answer(int(match[1]))
        return {key: re.sub(r"\{\{(\d+)\}\}", text, value) if isinstance(value, str) else value for key, value in arguments.items()}

    def answer(self, number):
        """The text that the plan's call of this number, counted from 1, was answered with."""
        return "".join(block["text"] for block in self.seen(number) if block.get("type") == "text")

    def seen(self, number):
        """All of it, as blocks."""
        content = next((r.get("content") for r in self.results if r.get("tool_use_id") == self.asked[number - 1]), [])
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    def message(self, request):
        self.messages += 1
        content, stop = self.reply(request)
        return {
            "id": f"msg_{self.run}{self.messages:04d}",
            "type": "message",
            "role": "assistant",
            "model": request.get("model", MODEL),
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = None

    def log_message(self, *_):
        pass

    def json(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        if self.path.startswith("/v1/models"):
            entry = {"type": "model", "id": MODEL, "display_name": MODEL, "created_at": "2026-01-01T00:00:00Z"}
            return self.json({"data": [entry], "has_more": False, "first_id": MODEL, "last_id": MODEL})
        return self.json({"ok": True})

    do_HEAD = do_GET

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = self.path.split("?")[0]
        if path.endswith("/count_tokens"):
            return self.json({"input_tokens": 100})
        if not path.endswith("/messages"):
            return self.json({})
        message = self.model.message(request)
        if not request.get("stream"):
            return self.json(message)
        return self.stream(message)

    def stream(self, message):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.event("message_start", message={**message, "content": [], "stop_reason": None})
        for index, block in enumerate(message["content"]):
            if block["type"] == "text":
                start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                start, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            self.event("content_block_start", index=index, content_block=start)
            self.event("content_block_delta", index=index, delta=delta)
            self.event("content_block_stop", index=index)
        self.event("message_delta", delta={"stop_reason": message["stop_reason"], "stop_sequence": None}, usage={"output_tokens": 5})
        self.event("message_stop")
        self.close_connection = True

    def event(self, kind, **fields):
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())
        self.wfile.flush()
