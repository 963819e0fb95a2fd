"""Requests as the tests send them, and what a refusal must look like."""

from __future__ import annotations

from typing import Any

import httpx

#: In every prompt, and in nothing else: it must not turn up in any log or error.
MARKER = "MARKER-7f3c"
PROMPT = f"{MARKER} Say yes."
SHAPE = {"message", "type", "param", "code"}


def chat(model: Any, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 50,
        **more,
    }


#: Anthropic's body has the same required fields as OpenAI's.
messages = chat


def completion(model: Any, **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": PROMPT, "max_tokens": 50, **more}


def embedding(model: Any, **more: Any) -> dict[str, Any]:
    return {"model": model, "input": PROMPT, **more}


def response(model: Any, **more: Any) -> dict[str, Any]:
    return {"model": model, "input": PROMPT, "max_output_tokens": 50, **more}


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Assert that *answer* is the contract's refusal *code*; return its `error` object."""
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert (answer.status_code, document["error"]["code"]) == (status, code), answer.text
    anthropic = answer.request.url.path.removeprefix("/v1") == "/messages"
    assert document.keys() == ({"type", "error"} if anthropic else {"error"})
    if anthropic:
        assert document["type"] == "error"
    error: dict[str, Any] = document["error"]
    assert error.keys() == SHAPE
    assert error["message"]
    assert error["type"]
    return error
