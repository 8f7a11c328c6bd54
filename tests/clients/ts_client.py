#!/usr/bin/env python3
"""The TypeScript SDK's client. --era auto|legacy|2026-07-28"""
import json
import os
import subprocess

from common import BASE, HOME, NODE, Proxy, Record, finish, need, parse, verdict


def main():
    a = parse("typescript client", lambda parser: parser.add_argument("--era", default="auto"))
    a.name += f" ({a.era})"
    record = Record(a.log)
    need(os.path.join(HOME, "node_modules/@modelcontextprotocol/client"))
    command = [need(NODE), os.path.join(BASE, "ts_client.mjs"), HOME, Proxy(a.url, record).url, json.dumps(a.calls), a.era]
    command += [a.token] if a.token else []
    ran = subprocess.run(command, capture_output=True, text=True, timeout=a.timeout)
    ok, detail = verdict(record, a.calls)
    if ran.returncode:
        ok, detail = False, f"exit {ran.returncode}: {ran.stderr[-800:]}"
    finish(a, record, ok, detail)


main()
