"""Reading a call: which fields get in, and what a malformed call is told."""

from __future__ import annotations

import time
from typing import Any

import pytest

from plugins.policy.call import (
    MAX_DEPTH,
    Call,
    Limits,
    read_call,
    too_many_values,
    unreadable_text,
)
from plugins.policy.grants import DataClass
from plugins.policy.refusal import Refusal
from plugins.policy.routes import GOVERNED, Route

CHAT = GOVERNED["POST", "/v1/chat/completions"]
COMPLETIONS = GOVERNED["POST", "/v1/completions"]
RESPONSES = GOVERNED["POST", "/v1/responses"]
MESSAGES = GOVERNED["POST", "/v1/messages"]
EMBEDDINGS = GOVERNED["POST", "/v1/embeddings"]

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HELLO, **fields}


def part(**fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": [fields]}])


def read(route: Route, body: Any, limits: Limits | None = None, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_call(route, named, body, limits or Limits())


def test_a_plain_call_is_read_whole() -> None:
    """What the policies see is the model, the cap and nothing of the text."""
    body = chat(max_tokens=5, stream=True, temperature=0.2, user="u")

    assert read(CHAT, body) == (Call("m", stream=True, output_cap=5), body)


def test_metadata_names_the_work_and_goes_no_further() -> None:
    """A caller's metadata would be merged into LiteLLM's own; it stays here."""
    body = chat(metadata={"task_type": "extract", "task_id": "t1", "team": "blue"})

    assert read(CHAT, body) == (Call("m", task_type="extract", task_id="t1"), chat())


def test_what_litellm_put_into_an_answer_is_taken_out_of_its_echo() -> None:
    """LiteLLM would unpack it into blocks of the next call."""
    echo = {"provider_specific_fields": {"compaction_blocks": [1]}}
    call = {"id": "1", "type": "function", "function": {"name": "f", **echo}, **echo}
    body = chat(messages=[{"role": "assistant", "content": "x", "tool_calls": [call], **echo}])

    _, cleaned = read(CHAT, body)

    assert "provider_specific_fields" not in repr(cleaned)
    assert cleaned["messages"][0]["tool_calls"][0]["function"] == {"name": "f"}


def test_counting_values_takes_a_look_at_each_byte() -> None:
    """Forty thousand unfinished strings are counted in milliseconds."""
    started = time.process_time()

    assert too_many_values(b"," * 100_001 + b'\\"' * 40_000) is not None
    assert too_many_values(b'"' + b"," * 200_000 + b'"') is None
    assert time.process_time() - started < 1.0


def test_a_header_wins_over_metadata() -> None:
    """`x-task-type` is the stronger of the two ways to name the work."""
    body = chat(metadata={"task_type": "extract"})

    call, _ = read(CHAT, body, x_task_type="summarize", x_data_class="local-only")

    assert call == Call("m", task_type="summarize", data_class=DataClass.LOCAL_ONLY)


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        pytest.param(CHAT, chat(api_base="http://x"), "api_base", id="destination"),
        pytest.param(CHAT, chat(api_key="k"), "api_key", id="credential"),
        pytest.param(CHAT, chat(fallbacks=["b"]), "fallbacks", id="fallbacks"),
        pytest.param(CHAT, chat(extra_body={"n": 5}), "extra_body", id="extra-body"),
        pytest.param(CHAT, chat(**{"no-log": True}), "no-log", id="bookkeeping"),
        pytest.param(CHAT, chat(**{"a\nb\"'ü": 1}), "a?b???", id="a-name-is-shown-tamed"),
        pytest.param(CHAT, chat(metadata={"api_base": "x"}), "metadata.api_base", id="nested"),
        pytest.param(CHAT, chat(metadata={"x": {"y": 1}}), "metadata.x", id="nested-object"),
        pytest.param(
            CHAT, chat(metadata={"response_cost": 0}), "metadata.response_cost", id="cost"
        ),
        pytest.param(
            CHAT,
            chat(metadata={"user_api_key_team_id": "t"}),
            "metadata.user_api_key_team_id",
            id="identity",
        ),
        pytest.param(
            CHAT, chat(tools=[{"type": "mcp"}]), "tools[0].type", id="tool-of-a-third-party"
        ),
        pytest.param(CHAT, chat(tools=[{}]), "tools[0].type", id="tool-without-a-type"),
        pytest.param(
            MESSAGES,
            chat(max_tokens=1, tools=[{"type": "web_search_20250305"}]),
            "tools[0].type",
            id="search-by-the-provider",
        ),
        pytest.param(
            CHAT,
            part(type="image_url", image_url={"url": "http://10.0.0.1/x"}),
            "messages[0].content[0].image_url.url",
            id="link-to-an-inner-host",
        ),
        pytest.param(
            CHAT,
            part(type="image_url", image_url="https://e.org/x.png"),
            "messages[0].content[0].image_url",
            id="link-as-text",
        ),
        pytest.param(
            CHAT,
            part(type="file", file={"file_id": "f-1"}),
            "messages[0].content[0].file.file_id",
            id="file-of-another-tenant",
        ),
        pytest.param(
            MESSAGES,
            chat(
                max_tokens=1,
                messages=[
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "content": [
                                    {"type": "image", "source": {"type": "url", "url": "ftp://x"}}
                                ],
                            }
                        ],
                    }
                ],
            ),
            "messages[0].content[0].content[0].source.url",
            id="link-inside-a-tool-result",
        ),
        pytest.param(
            RESPONSES,
            {"model": "m", "input": "x", "previous_response_id": "r"},
            "previous_response_id",
            id="answer-of-another-tenant",
        ),
    ],
)
def test_control_fields_are_refused_by_name(route: Route, body: Any, param: str) -> None:
    """A field that could choose destination, credential, model or bookkeeping is named."""
    refusal = read(route, body)

    assert isinstance(refusal, Refusal)
    assert refusal.code == "param_not_allowed"
    assert refusal.param == param


@pytest.mark.parametrize(
    ("route", "body", "message"),
    [
        pytest.param(CHAT, None, "The body must be a JSON object.", id="null"),
        pytest.param(CHAT, [], "The body must be a JSON object.", id="list"),
        pytest.param(CHAT, {"messages": HELLO}, "The field 'model' is missing.", id="no-model"),
        pytest.param(
            CHAT, chat(model=None), "The field 'model' is missing.", id="null-model"
        ),
        pytest.param(
            CHAT, chat(model=["a", "b"]), "The field 'model' has a value of the wrong kind.",
            id="list-of-models",
        ),
        pytest.param(
            CHAT, chat(model=""), "The field 'model' must name one model.", id="empty-model"
        ),
        pytest.param(
            CHAT, chat(messages=[]), "The field 'messages' has a value of the wrong kind.",
            id="no-messages",
        ),
        pytest.param(
            CHAT, chat(max_tokens="abc"), "The field 'max_tokens' has a value of the wrong kind.",
            id="cap-in-words",
        ),
        pytest.param(
            CHAT, chat(max_tokens=True), "The field 'max_tokens' has a value of the wrong kind.",
            id="cap-true",
        ),
        pytest.param(
            CHAT, chat(max_tokens=-1), "The field 'max_tokens' has a value of the wrong kind.",
            id="cap-negative",
        ),
        pytest.param(
            CHAT, chat(n=10**6), "The field 'n' has a value of the wrong kind.",
            id="a-million-answers",
        ),
        pytest.param(
            CHAT, chat(max_tokens=1, max_completion_tokens=3000),
            "'max_tokens' and 'max_completion_tokens' differ; send one of them.", id="two-caps",
        ),
        pytest.param(
            EMBEDDINGS, {"model": "m", "input": [[]]},
            "The field 'input' has a value of the wrong kind.", id="empty-token-list",
        ),
        pytest.param(
            RESPONSES, {"model": "m", "input": "x", "store": True},
            "The field 'store' has a value of the wrong kind.", id="kept-by-the-provider",
        ),
        pytest.param(
            MESSAGES, chat(), "The field 'max_tokens' is missing.", id="messages-need-a-cap"
        ),
    ],
)  # fmt: skip
def test_malformed_calls_are_told_what_is_wrong(route: Route, body: Any, message: str) -> None:
    """The caller's fault is the caller's to read."""
    assert read(route, body).message == message


@pytest.mark.parametrize(
    ("route", "body"),
    [
        pytest.param(CHAT, chat(temperature=None, tools=None), id="null-means-not-set"),
        pytest.param(CHAT, chat(max_tokens=9, max_completion_tokens=9), id="two-equal-caps"),
        pytest.param(
            CHAT, part(type="image_url", image_url={"url": "data:image/png;base64,AA=="}),
            id="inline-image",
        ),
        pytest.param(
            MESSAGES,
            chat(
                max_tokens=1,
                messages=[
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "input": {"url": "https://e.org"}}],
                    }
                ],
            ),
            id="a-link-as-a-tool-argument",
        ),
        pytest.param(
            MESSAGES, chat(max_tokens=1, tools=[{"name": "f", "input_schema": {}}]), id="own-tool"
        ),
        pytest.param(
            CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}]), id="function"
        ),
        pytest.param(COMPLETIONS, {"model": "m", "prompt": [1, 2, 3]}, id="token-ids"),
        pytest.param(COMPLETIONS, {"model": "m", "prompt": [[1], [2]]}, id="lists-of-token-ids"),
        pytest.param(CHAT, part(type="text", text="see http://e.org"), id="a-link-in-the-text"),
    ],
)  # fmt: skip
def test_ordinary_calls_get_in(route: Route, body: Any) -> None:
    """Nothing that a client library sends on its own is refused."""
    assert not isinstance(read(route, body), Refusal)


def test_an_administrator_may_allow_links() -> None:
    """`wicketgate.defaults.remote_media` lets messages point at the web."""
    body = part(type="image_url", image_url={"url": "https://e.org/x.png"})

    assert not isinstance(read(CHAT, body, Limits(remote_media=True)), Refusal)


@pytest.mark.parametrize(
    ("header", "value"),
    [("x_data_class", "public"), ("x_task_type", ""), ("x_task_id", "t" * 257)],
)
def test_odd_headers_are_refused(header: str, value: str) -> None:
    """A header that would loosen a rule, or name nothing, is the caller's fault."""
    refusal = read(CHAT, chat(), **{header: value})

    assert (refusal.code, refusal.param) == ("invalid_request_error", header.replace("_", "-"))


def nested(depth: int) -> Any:
    document: Any = "x"
    for _ in range(depth):
        document = [document]
    return document


def test_nesting_is_bounded() -> None:
    """A body as deep as the bound is read; one deeper would exhaust a parser further in."""
    refusal = unreadable_text(nested(MAX_DEPTH))

    assert unreadable_text(nested(MAX_DEPTH - 1)) is None
    assert refusal is not None
    assert refusal.message == "The body is nested more than 100 levels deep."


@pytest.mark.parametrize("document", [{"a\x00": 1}, {"a": ["b\x00"]}, "\x00"])
def test_nul_is_refused_wherever_it_stands(document: Any) -> None:
    """Postgres cannot store U+0000, and no model needs it."""
    refusal = unreadable_text(document)

    assert refusal is not None
    assert refusal.message == "Text must not contain the character U+0000."
