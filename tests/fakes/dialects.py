"""The bodies a provider answers with: OpenAI's three text routes and embeddings, Anthropic's one.

Every function takes the request's body and the script, and returns a document or the
frames of a stream. The words of a stream all differ: LiteLLM cuts off a stream that
repeats one chunk a hundred times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from tests.fakes.script import Script

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Frame:
    """One piece of a stream; only pieces of *text* count for `Script.cut_after`."""

    data: bytes
    text: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    whole: Callable[[Any, Script], dict[str, Any]]
    stream: Callable[[Any, Script], Iterator[Frame]] | None
    error: Callable[[int, str], dict[str, Any]]


def words(script: Script) -> list[str]:
    return [f"word{number} " for number in range(script.words)]


def _text(script: Script) -> str:
    return "".join(words(script)).strip()


def _id(start: str) -> str:
    return f"{start}-{next(_numbers)}"


def _data(document: Any, *, text: bool = False) -> Frame:
    return Frame(b"data: " + json.dumps(document).encode() + b"\n\n", text)


def _event(document: dict[str, Any], *, text: bool = False) -> Frame:
    name = document["type"].encode()
    return Frame(b"event: " + name + b"\n" + _data(document).data, text)


def openai_error(status: int, message: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": str(status)}}


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    kind = "api_error" if status >= 500 else "invalid_request_error"
    return {"type": "error", "error": {"type": kind, "message": message}}


def _usage(script: Script) -> dict[str, Any]:
    if script.usage is None:
        return {}
    prompt, completion = script.usage
    return {
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
    }


def _envelope(body: Any, kind: str) -> dict[str, Any]:
    return {"id": _id("fake"), "object": kind, "created": 1, "model": body.get("model", "")}


def chat(body: Any, script: Script) -> dict[str, Any]:
    message = {"role": "assistant", "content": _text(script)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {**_envelope(body, "chat.completion"), "choices": [choice], **_usage(script)}


def chat_stream(body: Any, script: Script) -> Iterator[Frame]:
    envelope = _envelope(body, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None, *, text: bool = False) -> Frame:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data({**envelope, "choices": [choice]}, text=text)

    yield chunk({"role": "assistant", "content": ""})
    for word in words(script):
        yield chunk({"content": word}, text=True)
    yield chunk({}, "stop")
    if script.usage is not None and (body.get("stream_options") or {}).get("include_usage"):
        yield _data({**envelope, "choices": [], **_usage(script)})
    yield Frame(b"data: [DONE]\n\n")


def completion(body: Any, script: Script) -> dict[str, Any]:
    choice = {"index": 0, "text": _text(script), "finish_reason": "stop", "logprobs": None}
    return {**_envelope(body, "text_completion"), "choices": [choice], **_usage(script)}


def completion_stream(body: Any, script: Script) -> Iterator[Frame]:
    envelope = _envelope(body, "text_completion")
    for word in words(script):
        choice = {"index": 0, "text": word, "finish_reason": None, "logprobs": None}
        yield _data({**envelope, "choices": [choice]}, text=True)
    end = {"index": 0, "text": "", "finish_reason": "stop", "logprobs": None}
    yield _data({**envelope, "choices": [end], **_usage(script)})
    yield Frame(b"data: [DONE]\n\n")


def embeddings(body: Any, script: Script) -> dict[str, Any]:
    given = body.get("input")
    inputs = given if isinstance(given, list) else [given]
    data = [
        {"object": "embedding", "index": index, "embedding": [0.25, 0.5, 0.75]}
        for index, _ in enumerate(inputs)
    ]
    document: dict[str, Any] = {"object": "list", "data": data, "model": body.get("model", "")}
    if script.usage is not None:
        document["usage"] = {"prompt_tokens": script.usage[0], "total_tokens": script.usage[0]}
    return document


def responses(body: Any, script: Script) -> dict[str, Any]:
    part = {"type": "output_text", "text": _text(script), "annotations": []}
    message = {
        "type": "message",
        "id": _id("msg"),
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }
    return {**_response(body, "completed"), "output": [message], "usage": _input_usage(script)}


def _response(body: Any, status: str) -> dict[str, Any]:
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": body.get("model", ""),
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }


def _input_usage(script: Script) -> dict[str, Any] | None:
    if script.usage is None:
        return None
    given, made = script.usage
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + made,
    }


def responses_stream(body: Any, script: Script) -> Iterator[Frame]:
    numbers = count()
    whole = responses(body, script)
    message = whole["output"][0]
    part = message["content"][0]
    at = {"item_id": message["id"], "output_index": 0, "content_index": 0}

    def event(kind: str, *, text: bool = False, **more: Any) -> Frame:
        document = {"type": f"response.{kind}", "sequence_number": next(numbers), **more}
        return _event(document, text=text)

    opened = {**whole, "status": "in_progress", "output": [], "usage": None}
    empty = {**message, "status": "in_progress", "content": []}
    yield event("created", response=opened)
    yield event("output_item.added", output_index=0, item=empty)
    yield event("content_part.added", **at, part={**part, "text": ""})
    for word in words(script):
        yield event("output_text.delta", text=True, **at, delta=word, logprobs=[])
    yield _event(
        {
            "type": "response.output_text.done",
            "sequence_number": next(numbers),
            **at,
            "text": part["text"],
            "logprobs": [],
        }
    )
    yield event("content_part.done", **at, part=part)
    yield event("output_item.done", output_index=0, item=message)
    yield event("completed", response=whole)


def messages(body: Any, script: Script) -> dict[str, Any]:
    given, made = script.usage or (0, 0)
    return {
        "id": _id("msg"),
        "type": "message",
        "role": "assistant",
        "model": body.get("model", ""),
        "content": [{"type": "text", "text": _text(script)}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": given, "output_tokens": made},
    }


def messages_stream(body: Any, script: Script) -> Iterator[Frame]:
    whole = messages(body, script)
    made = whole["usage"]["output_tokens"]
    start = {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {**whole["usage"], "output_tokens": 1},
    }
    yield _event({"type": "message_start", "message": start})
    block = {"type": "text", "text": ""}
    yield _event({"type": "content_block_start", "index": 0, "content_block": block})
    for word in words(script):
        delta = {"type": "text_delta", "text": word}
        yield _event({"type": "content_block_delta", "index": 0, "delta": delta}, text=True)
    yield _event({"type": "content_block_stop", "index": 0})
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": end, "usage": {"output_tokens": made}})
    yield _event({"type": "message_stop"})


def count_tokens(body: Any, script: Script) -> dict[str, Any]:
    return {"input_tokens": (script.usage or (1, 0))[0]}


def models(body: Any, script: Script) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "fake", "object": "model", "owned_by": "fake"}]}


#: (method, path) -> how it answers; anything else is journaled and answered 404.
DIALECTS: dict[tuple[str, str], Dialect] = {
    ("POST", "/v1/chat/completions"): Dialect(chat, chat_stream, openai_error),
    ("POST", "/v1/completions"): Dialect(completion, completion_stream, openai_error),
    ("POST", "/v1/embeddings"): Dialect(embeddings, None, openai_error),
    ("POST", "/v1/responses"): Dialect(responses, responses_stream, openai_error),
    ("GET", "/v1/models"): Dialect(models, None, openai_error),
    ("POST", "/v1/messages"): Dialect(messages, messages_stream, anthropic_error),
    ("POST", "/v1/messages/count_tokens"): Dialect(count_tokens, None, anthropic_error),
}
