#!/usr/bin/env python3
"""Claude Code (`claude -p`) with a scripted model: over HTTP, or with --stdio over a command's stdin and stdout."""
import json
import os
import re
import subprocess

from common import HOME, Proxy, Record, finish, need, parse, verdict
from scripted_model import ScriptedModel

SERVER = "gw"


def add(parser):
    parser.add_argument("--stdio", type=json.loads, help="JSON list: a command that is the server; URL is ignored")
    parser.add_argument("--transcript", help="a file for what the model asked for and saw: a JSON list")


def main():
    a = parse("claude code", add)
    claude = need(os.path.join(HOME, "node_modules/@anthropic-ai/claude-code-linux-x64/claude"))
    record = Record(a.log)
    plan = [[f"mcp__{SERVER}__" + re.sub(r"[^a-zA-Z0-9_-]", "_", tool), arguments] for tool, arguments, _ in a.calls]
    model = ScriptedModel(plan)
    code, output = run(a, claude, server(a, record), [tool for tool, _ in plan], model)
    good = [json.dumps(r.get("content"), ensure_ascii=False) for r in model.results if not r.get("is_error")]
    good = [r for r in good if "ToolSearch" not in r and "tool_reference" not in r]
    ok, detail = (True, "") if a.stdio else verdict(record, a.calls)
    for tool, _, expect in a.calls:
        if ok and not any((expect or "") in r for r in good):
            ok, detail = False, f"no good tool_result of {tool} reached the model"
    if a.transcript:
        with open(a.transcript, "w") as file:
            json.dump(transcript(plan, model), file)
    if code:
        ok, detail = False, f"claude ended with {code}: {output[-1000:]}"
    finish(a, record, ok, f"{detail}\n  the model saw: {shortened(model.results)}")


def transcript(plan, model):
    """Each call as the model made it, and the blocks that it saw of its result."""
    calls = zip(plan, range(1, len(model.asked) + 1))
    return [{"tool": tool, "input": model.filled(arguments), "saw": model.seen(number)} for (tool, arguments), number in calls]


def shortened(results):
    return "; ".join(json.dumps(result.get("content"), ensure_ascii=False)[:300] for result in results)


def server(a, record):
    """The entry of the MCP configuration."""
    if a.stdio:
        return {"type": "stdio", "command": a.stdio[0], "args": a.stdio[1:]}
    headers = {"Authorization": f"Bearer {a.token}"} if a.token else {}
    return {"type": "http", "url": Proxy(a.url, record).url, "headers": headers}


def run(a, claude, entry, tools, model):
    """Claude Code in a home of its own, talking to nobody but loopback."""
    home = os.path.join(a.work, "home")
    os.makedirs(home, exist_ok=True)
    config = os.path.join(a.work, "mcp.json")
    with open(config, "w") as file:
        json.dump({"mcpServers": {SERVER: entry}}, file)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ANTHROPIC", "CLAUDE", "MCP_"))}
    env.update(
        HOME=home,
        CLAUDE_CONFIG_DIR=os.path.join(home, ".claude"),
        ANTHROPIC_BASE_URL=model.url,
        ANTHROPIC_API_KEY="sk-ant-dummy",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
        DISABLE_TELEMETRY="1",
        DISABLE_ERROR_REPORTING="1",
        MCP_CONNECTION_NONBLOCKING="0",
    )
    command = [claude, "-p", "Call the tools once each, then stop.", "--mcp-config", config, "--strict-mcp-config"]
    command += ["--allowedTools", ",".join([*tools, "ToolSearch"]), "--output-format", "stream-json", "--verbose"]
    command += ["--debug-file", os.path.join(a.work, "debug.log")]
    process = subprocess.Popen(command, env=env, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=a.timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=10)
        return "a timeout", output
    return process.returncode, output


main()
