"""What may stand inside messages and tools."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.policy.content import check_content, check_schema
from plugins.policy.routes import GOVERNED

CHAT, MESSAGES, RESPONSES = (
    GOVERNED["POST", path] for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses")
)
ELSEWHERE = "http://10.0.0.1/x"


def chat_part(part: Any) -> tuple[Any, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": [part]}]}


def message_part(part: Any) -> tuple[Any, dict[str, Any]]:
    return MESSAGES, {"messages": [{"role": "user", "content": [part]}]}


def item(**fields: Any) -> tuple[Any, dict[str, Any]]:
    return RESPONSES, {"input": [fields]}


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("call", "param"),
    [
        pytest.param(chat_part(image(ELSEWHERE)), "image_url.url", id="link"),
        pytest.param(chat_part(image(" " * 40 + ELSEWHERE)), "image_url.url", id="blanks-before"),
        pytest.param(chat_part(image("//10.0.0.1/x")), "image_url.url", id="no-scheme"),
        pytest.param(chat_part(image("/etc/passwd")), "image_url.url", id="a-file"),
        pytest.param(chat_part(image("DATA:,x")), "image_url.url", id="almost-data"),
        pytest.param(
            chat_part({"type": "audio_url", "audio_url": {"url": ELSEWHERE}}), "type", id="audio"
        ),
        pytest.param(
            chat_part({"type": "document_url", "document_url": ELSEWHERE}), "type", id="document"
        ),
        pytest.param(
            chat_part({"type": "text", "text": "x", "image": {"url": ELSEWHERE}}), "image",
            id="a-field-beside",
        ),
        pytest.param(
            chat_part({"type": "input_audio", "input_audio": {"data": ELSEWHERE}}),
            "input_audio.data", id="audio-data",
        ),
        pytest.param(
            chat_part({"type": "file", "file": {"file_data": ELSEWHERE}}), "file.file_data",
            id="file-data",
        ),
        pytest.param(
            message_part({"type": "image", "source": {"type": "base64", "data": ELSEWHERE}}),
            "source.data", id="source-data",
        ),
        pytest.param(
            message_part({"type": "document", "source": {"type": "file", "file_id": "f"}}),
            "source.file_id", id="source-file",
        ),
        pytest.param(
            message_part({"type": "container_upload", "file_id": "f"}), "type", id="container"
        ),
    ],
)  # fmt: skip
def test_a_part_brings_its_data_along(call: tuple[Any, dict[str, Any]], param: str) -> None:
    """Nothing in a message makes anybody fetch anything."""
    refusal = check_content(*call, remote_media=False)

    assert refusal is not None
    assert refusal.code == "param_not_allowed"
    assert refusal.param == f"messages[0].content[0].{param}"


@pytest.mark.parametrize(
    ("call", "param"),
    [
        pytest.param(item(type="item_reference", id="i"), "input[0].type", id="reference"),
        pytest.param(item(id="msg_1"), "input[0].id", id="a-bare-id-is-a-reference"),
        pytest.param(item(type="reasoning", id="rs_1", summary=[]), "input[0].id", id="reasoning"),
        pytest.param(item(type="image_generation_call", id="i"), "input[0].type", id="image"),
        pytest.param(
            item(type="function_call_output", output=[{"type": "input_file", "file_id": "f"}]),
            "input[0].output[0].file_id", id="file-in-an-output",
        ),
        pytest.param(
            item(role="user", content=[{"type": "input_image", "image_url": ELSEWHERE}]),
            "input[0].content[0].image_url", id="link",
        ),
        pytest.param(
            (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}),
            "messages[0].audio", id="stored-audio",
        ),
        pytest.param(
            (CHAT, {"tools": [{"type": "function", "googleSearch": {}}]}),
            "tools[0].googleSearch", id="a-search-dressed-as-a-function",
        ),
        pytest.param(
            (RESPONSES, {"tools": [{"type": "mcp", "server_url": ELSEWHERE}]}), "tools[0].type",
            id="a-server-of-somebody-else",
        ),
        pytest.param(
            (MESSAGES, {"tools": [{"type": "web_fetch_20250910"}]}), "tools[0].type", id="fetch"
        ),
    ],
)  # fmt: skip
def test_nothing_points_at_what_lies_elsewhere(
    call: tuple[Any, dict[str, Any]], param: str
) -> None:
    """What a provider stores or calls belongs to the operator's account, not to a tenant."""
    refusal = check_content(*call, remote_media=False)

    assert refusal is not None
    assert (refusal.code, refusal.param) == ("param_not_allowed", param)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(chat_part(image("data:image/png;base64,AA==")), id="inline-image"),
        pytest.param(
            chat_part({"type": "input_audio", "input_audio": {"data": "//uQ", "format": "mp3"}}),
            id="base64-may-begin-with-slashes",
        ),
        pytest.param(
            message_part(
                {"type": "document", "source": {"type": "text", "data": f"see {ELSEWHERE}"}}
            ),
            id="a-link-in-a-text-document",
        ),
        pytest.param(
            message_part({"type": "tool_use", "id": "t", "name": "f", "input": {"url": ELSEWHERE}}),
            id="a-link-as-a-tool-argument",
        ),
        pytest.param(
            (
                CHAT,
                {
                    "messages": [
                        {
                            "role": "assistant",
                            "content": None,
                            "audio": None,
                            "refusal": None,
                            "tool_calls": [{"id": "1", "type": "function", "function": {}}],
                        },
                        {"role": "tool", "tool_call_id": "1", "content": "x"},
                    ]
                },
            ),
            id="what-the-openai-client-echoes",
        ),
        pytest.param(
            item(type="reasoning", id="rs_1", summary=[], encrypted_content="x"),
            id="reasoning-brought-along",
        ),
        pytest.param(item(role="user", content="hi"), id="an-item-without-a-type"),
        pytest.param(
            (MESSAGES, {"tools": [{"type": "computer_20250124", "name": "computer",
                                   "display_width_px": 1, "display_height_px": 1}]}),
            id="a-tool-of-the-callers-machine",
        ),
        pytest.param(
            (MESSAGES, {"system": [{"type": "text", "text": "x", "cache_control": {}}]}),
            id="system-in-parts",
        ),
    ],
)  # fmt: skip
def test_what_clients_send_on_their_own_gets_in(call: tuple[Any, dict[str, Any]]) -> None:
    """The official clients, and agents built on them, need nothing that is refused."""
    assert check_content(*call, remote_media=False) is None


@pytest.mark.parametrize("url", ["https://e.org/x.png", "http://e.org/x.png", "data:,x"])
def test_an_administrator_may_let_links_in(url: str) -> None:
    """`remote_media` opens the web, and nothing but the web."""
    assert check_content(*chat_part(image(url)), remote_media=True) is None
    refusal = check_content(*chat_part(image("file:///etc/passwd")), remote_media=True)
    assert refusal is not None


@pytest.mark.parametrize(
    "content",
    [7, {}, [7], [{}], [{"type": 7}], [{"type": "text"}], [{"type": "image_url", "image_url": 7}]],
)
def test_a_shape_that_nobody_knows_is_told(content: Any) -> None:
    """LiteLLM would fail over it, and call it the provider's fault."""
    refusal = check_content(
        CHAT, {"messages": [{"role": "user", "content": content}]}, remote_media=False
    )

    assert refusal is not None
    assert refusal.code == "invalid_request_error"


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema that comes to two to the power of *levels* values."""
    both = {
        f"a{n}": {"properties": {side: {"$ref": f"#/$defs/a{n + 1}"} for side in "xy"}}
        for n in range(levels)
    }
    return {"$defs": {**both, f"a{levels}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def test_a_schema_may_not_grow_without_end() -> None:
    """Some bridges put each reference in place; seventeen lines would fill the memory."""
    refusal = check_schema("tools[0].function.parameters", doubling(17))

    assert check_schema("p", doubling(5)) is None
    assert refusal is not None
    assert refusal.message.endswith("the schema comes to more than 20000 values.")


def test_a_schema_may_hold_itself() -> None:
    """Trees and lists do."""
    tree = {"$defs": {"t": {"properties": {"kids": {"items": {"$ref": "#/$defs/t"}}}}},
            "$ref": "#/$defs/t"}  # fmt: skip

    assert check_schema("p", tree) is None


def test_a_schema_refers_to_itself_only() -> None:
    """A reference to the web would have to be fetched."""
    refusal = check_schema("p", {"$ref": f"{ELSEWHERE}#/a"})

    assert refusal is not None
    assert refusal.message.endswith("a schema may refer only to parts of itself.")


def test_a_long_chain_of_references_ends() -> None:
    """However deep they lead, the gate answers."""
    chain = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(5000)}

    assert check_schema("p", {"$defs": chain, "$ref": "#/$defs/a0"}) is not None


def test_a_name_stands_for_one_definition() -> None:
    """Two would be counted as the small one and expanded as the large one."""
    schema = {**doubling(20), "properties": {"y": {"$defs": {"a0": {"type": "string"}}}}}

    assert check_schema("p", schema) is not None


def test_definitions_that_all_name_each_other_are_counted_in_full() -> None:
    """Eight of them come to a quarter of a million values."""
    names = [f"d{n}" for n in range(8)]
    everyone = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    schema = {"$defs": {name: dict(everyone) for name in names}, "$ref": "#/$defs/d0"}

    assert check_schema("p", schema) is not None


STORED = {"type": "document", "source": {"type": "file", "file_id": "f"}}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(
            (CHAT, {"messages": [{"role": "assistant", "thinking_blocks": [STORED]}]}),
            id="a-document-among-thoughts",
        ),
        pytest.param((MESSAGES, {"tools": [{"name": "web_search"}]}), id="a-search-by-its-name"),
        pytest.param(
            (CHAT, {"response_format": {"type": "json_object", "response_schema": doubling(20)}}),
            id="a-schema-under-another-name",
        ),
    ],
)
def test_side_doors_are_closed(call: tuple[Any, dict[str, Any]]) -> None:
    """Fields that LiteLLM's bridges unpack are looked into as well."""
    assert check_content(*call, remote_media=False) is not None
