#!/usr/bin/env python3
"""MCP Inspector on the command line. --era legacy|auto|modern"""
import json
import os
import subprocess

from common import HOME, NODE, Proxy, Record, finish, need, parse, verdict


def main():
    a = parse("inspector cli", lambda parser: parser.add_argument("--era", default="legacy"))
    a.name += f" ({a.era})"
    record = Record(a.log)
    inspector = need(os.path.join(HOME, "node_modules/.bin/mcp-inspector"))
    command = [need(NODE), os.path.realpath(inspector), "--cli", Proxy(a.url, record).url, "--transport", "http"]
    command += ["--protocol-era", a.era, "--method", "tools/call", "--tool-name", a.tool]
    for key, value in a.arguments.items():
        command += ["--tool-arg", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    command += ["--header", f"Authorization: Bearer {a.token}"] if a.token else []
    # It may start helpers of its own with whatever `node` it finds first.
    env = {**os.environ, "HOME": a.work, "BROWSER": "/bin/false", "PATH": os.path.dirname(NODE) + ":" + os.environ["PATH"]}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=a.timeout, cwd=a.work, env=env, stdin=subprocess.DEVNULL)
    ok, detail = verdict(record, a.calls)
    if ran.returncode:
        ok, detail = False, f"exit {ran.returncode}: {ran.stderr[-800:]}"
    finish(a, record, ok, detail)


main()
