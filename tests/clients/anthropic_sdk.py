#!/usr/bin/env python3
"""The official SDK of Anthropic against a server that follows scripts: URL KEY. Streaming and not, tools, thinking, errors."""
import os
import sys

from common import HOME, need

PYTHON = os.path.join(HOME, "py-anthropic/bin/python")
if sys.prefix != os.path.dirname(os.path.dirname(PYTHON)):
    os.execv(need(PYTHON), [PYTHON, *sys.argv])

import anthropic  # noqa: E402  (from here on in the client's own environment)

URL, KEY = sys.argv[1:3]
TOOLS = [{"name": "sandbox__bash", "description": "Runs a command.", "input_schema": {"type": "object"}}]
SCRIPT = """@think Where am I?
@say I will look.
@call sandbox__bash {"command": "ls"}
@call sandbox__bash {"command": "pwd"}
@then
@say It says: {{result 1}} and {{result 2}}"""


def client(key=KEY):
    return anthropic.Anthropic(base_url=URL, api_key=key, max_retries=0, timeout=60)


def ask(messages, streams):
    """The final message; streamed, the SDK puts it together, and the text that it heard must be the same."""
    arguments = {"model": "m", "max_tokens": 4096, "messages": messages, "tools": TOOLS}
    arguments["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    if not streams:
        return client().messages.create(**arguments)
    with client().messages.stream(**arguments) as stream:
        heard = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert heard == "".join(block.text for block in message.content if block.type == "text"), heard
    return message


def converse(streams):
    messages = [{"role": "user", "content": SCRIPT}]
    message = ask(messages, streams)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"], message
    assert message.content[0].thinking == "Where am I?" and message.content[0].signature, message
    assert [block.input for block in message.content[2:]] == [{"command": "ls"}, {"command": "pwd"}], message
    assert message.stop_reason == "tool_use" and message.usage.output_tokens > 0, message
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": text} for block, text in zip(message.content[2:], ["a", "/"])]
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    message = ask(messages, streams)
    assert message.content[0].text == "It says: a and /" and message.stop_reason == "end_turn", message


def fails(script, kind, key=KEY):
    """The SDK raises what it raises with the real API."""
    for streams in (False, True):
        arguments = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": script}]}
        try:
            if streams:
                with client(key).messages.stream(**arguments) as stream:
                    stream.get_final_message()
            else:
                client(key).messages.create(**arguments)
        except kind as error:
            headers = getattr(getattr(error, "response", None), "headers", {})
            assert "rate_limited" not in script or headers["retry-after"] == "2", headers
        else:
            raise AssertionError(f"{script}: no {kind.__name__}")


def main():
    converse(False)
    converse(True)
    fails("@fail rate_limited 2s", anthropic.RateLimitError)
    fails("@fail overloaded", anthropic.InternalServerError)
    fails("@fail refused", anthropic.BadRequestError)
    fails("@fail not_found", anthropic.NotFoundError)
    fails("@say Hello", anthropic.AuthenticationError, key="another")
    # In the middle of a stream.
    try:
        with client().messages.stream(model="m", max_tokens=64, messages=[{"role": "user", "content": "@say Half of\n@fail overloaded"}]) as stream:
            heard = "".join(stream.text_stream)
        raise AssertionError(f"no error after {heard}")
    except anthropic.APIStatusError as error:
        assert "overloaded_error" in str(error), error
    print(f"anthropic sdk: PASS | version: {anthropic.__version__}")


main()
