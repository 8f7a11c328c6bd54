#!/usr/bin/env python3
"""A server of the Python SDK, over stdin and stdout."""
import os
import sys

from common import HOME, need

PYTHON = os.path.join(HOME, "py-mcp/bin/python")
if sys.prefix != os.path.dirname(os.path.dirname(PYTHON)):
    os.execv(need(PYTHON), [PYTHON, *sys.argv])

from mcp.server import MCPServer  # noqa: E402  (from here on in the SDK's own environment)

server = MCPServer("python")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


server.run("stdio")
