#!/usr/bin/env python3
"""The Python SDK's client. --era auto|legacy|2026-07-28; with --resume it asks for the session's story first."""
import json
import os
import sys

from common import HOME, Proxy, Record, finish, need, parse, verdict

PYTHON = os.path.join(HOME, "py-mcp/bin/python")
if sys.prefix != os.path.dirname(os.path.dirname(PYTHON)):
    os.execv(need(PYTHON), [PYTHON, *sys.argv])

import asyncio  # noqa: E402  (from here on in the client's own environment)

import httpx2  # noqa: E402
from mcp import Client  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402


async def call(a, url):
    headers = {"Authorization": f"Bearer {a.token}"} if a.token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=300)) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=a.era) as client:
            if a.resume:
                judge(await client.get_prompt("resume"), a.resume)
            names = [tool.name for tool in (await client.list_tools()).tools]
            for tool, arguments, _ in a.calls:
                if tool not in names:
                    raise LookupError(f"{tool} is not listed: {names}")
                await client.call_tool(tool, arguments)


def judge(prompt, pieces):
    """The prompt tells all of this, in this order."""
    contents = [message.content for message in prompt.messages]
    told = "\n".join(getattr(content, "text", None) or content.resource.text for content in contents)
    place = 0
    for piece in pieces:
        found = told.find(piece, place)
        if found < 0:
            raise LookupError(f"the prompt resume does not tell {piece!r} in its place: {told}")
        place = found + len(piece)


def add(parser):
    parser.add_argument("--era", default="auto")
    parser.add_argument("--resume", type=json.loads, help="JSON list: what the prompt `resume` must tell, in this order")


def main():
    a = parse("python mcp", add)
    a.name += f" ({a.era})"
    record = Record(a.log)
    try:
        asyncio.run(asyncio.wait_for(call(a, Proxy(a.url, record).url), a.timeout))
        ok, detail = verdict(record, a.calls)
    except BaseException as error:  # an exception group is one, too
        ok, detail = False, f"{type(error).__name__}: {error} {[repr(e) for e in getattr(error, 'exceptions', [])]}"
    finish(a, record, ok, detail)


main()
