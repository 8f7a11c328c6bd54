"""An MCP server that puts what steers a terminal into all that it says. Its argument is that text."""

import json
import sys

steering = sys.argv[1]


def answer(method, params):
    if method == "initialize":
        info = {"name": "scripted" + steering, "version": "1" + steering}
        return {"protocolVersion": "2025-11-25", "serverInfo": info, "capabilities": {"tools": {}, "prompts": {}}}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"x": {"description": steering}}}
        names = ["shout", "fail", "odd" + steering]
        return {"tools": [{"name": name, "description": steering, "inputSchema": schema} for name in names]}
    if method == "prompts/list":
        return {"prompts": [{"name": "ask" + steering, "description": steering}]}
    if method == "tools/call":
        content = [{"type": "text", "text": "says " + steering}, {"type": "image", "data": "AA==", "mimeType": steering}]
        return {"content": content, "isError": params["name"] == "fail"}
    return None


for line in sys.stdin:
    message = json.loads(line)
    print("heard", steering, file=sys.stderr, flush=True)
    if "id" in message:
        said = answer(message.get("method"), message.get("params", {}))
        error = {"code": -32601, "message": "no such method " + steering}
        end = {"error": error} if said is None else {"result": said}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **end}), flush=True)
