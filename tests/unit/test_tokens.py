"""Prompt tokens: counted with the model's own tokenizer, or bounded from above."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from plugins import seam
from plugins.config.settings import DeploymentEntry, TokenizerFiles
from plugins.policy.grants import Deployment
from plugins.runtime import counter_of
from plugins.tokens import counter, images
from plugins.tokens.counter import Counter, NotUsable
from plugins.tokens.images import Image

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments.city }}"
    "{% endfor %}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CITY = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of single bytes with three special tokens, and its chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t) for t in ("<|bos|>", "<|start|>", "<|end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "bos_token": {"content": "<|bos|>"}, "pad_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def own(folder: Path) -> Counter:
    return counting(TokenizerFiles(file="tokenizer.json"), folder)


def counting(files: TokenizerFiles | None, folder: Path = Path(), model: str = "m") -> Counter:
    deployment = Deployment("d", "m", "p", "r", local=False)
    return counter_of(DeploymentEntry(deployment, {"model": model}, tokenizer=files), folder)


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": c} for c in contents], **fields}


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        # bos, then for each message a start, its role, a line feed, its bytes and an end; then
        # a start, "assistant" and a line feed.
        pytest.param(chat("hello"), 1 + (1 + 4 + 1 + 5 + 1) + 11, id="a-text"),
        pytest.param(chat("hi", "there"), 1 + 9 + 12 + 11, id="two-messages"),
        pytest.param(chat("日本 👋"), 1 + (7 + 11) + 11, id="not-ascii"),
        pytest.param(chat(None), 1 + 7 + 11, id="null-content"),
        pytest.param(chat([{"type": "text", "text": "hello"}]), 1 + 12 + 11, id="one-part"),
        pytest.param(chat("<|end|>"), 1 + 8 + 11, id="text-that-looks-like-a-token"),
        pytest.param(
            {"system": "be brief", "messages": [{"role": "user", "content": "hi"}]},
            1 + (1 + 6 + 1 + 8 + 1) + 9 + 11,
            id="system-beside",
        ),
        pytest.param({"input": "hi", "instructions": "be"}, 1 + 11 + 9 + 11, id="responses"),
        pytest.param({"prompt": "hello"}, 5, id="completion"),
        pytest.param({"prompt": [1, 2, 3]}, 3, id="token-ids"),
        pytest.param({"input": [[1, 2], [3]]}, 3, id="lists-of-ids"),
        pytest.param({"input": ["ab", "c"]}, 3, id="embeddings"),
    ],
)
def test_the_models_own_file_and_template_count_exactly(
    own: Counter, body: dict[str, Any], tokens: int
) -> None:
    counted = own.count_now(body)

    assert (counted.tokens, counted.exact) == (tokens, True)


ARGUMENTS = json.dumps({"city": "Oslo"})
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(chat("hello", tools=[CITY]), id="tools"),
        pytest.param(
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]},
            id="calls-of-tools",
        ),
        pytest.param(chat([{"type": "text", "text": "a"}] * 2), id="several-parts"),
        pytest.param(chat([{"type": "file", "file": {"file_data": "QUJD"}}]), id="a-file"),
        pytest.param(chat("a", response_format={"type": "json_schema"}), id="a-schema"),
        pytest.param({"messages": [{"role": "user", "content": "a", "name": "n"}]}, id="a-name"),
    ],
)
@pytest.mark.parametrize("encoding", [None, "o200k_base"], ids=["file", "encoding"])
def test_what_is_not_plain_is_bounded_and_said(
    own: Counter, body: dict[str, Any], encoding: str | None
) -> None:
    """Every part counts, and the count says that it is a bound."""
    used = own if encoding is None else counting(TokenizerFiles(encoding=encoding))
    plain = used.count_now({"messages": [{"role": "user", "content": "a"}]})

    counted = used.count_now(body)

    assert not counted.exact
    assert counted.tokens > plain.tokens


def test_messages_that_the_template_refuses_are_bounded(folder: Path, tmp_path: Path) -> None:
    """The engine would refuse them, too; nothing here fails."""
    template = tmp_path / "strict.jinja"
    template.write_text("{{ raise_exception('roles must alternate') }}")
    files = TokenizerFiles(file="tokenizer.json", chat_template=str(template))

    counted = counting(files, folder).count_now(chat("hello"))

    assert (counted.tokens, counted.exact) == (5 + counter.PER_MESSAGE + counter.AROUND, False)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
    ],
    ids=["classes", "changes", "files"],
)
def test_a_template_stays_in_its_sandbox(template: str) -> None:
    """It comes with a model from elsewhere."""
    render = counter.compile_template(template, {})

    with pytest.raises((counter.jinja2.TemplateError, TypeError)):
        render([], [])


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"tokenizer.json": "{}"}, "not a tokenizer.json"),
        ({}, "not a tokenizer.json"),
        ({"chat_template.jinja": "{% if %}"}, "does not compile"),
    ],
    ids=["another-file", "no-file", "broken-template"],
)
def test_a_file_that_cannot_be_used_is_told(
    folder: Path, tmp_path: Path, files: dict[str, str], told: str
) -> None:
    if "chat_template.jinja" in files:
        (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    with pytest.raises(NotUsable, match=told):
        counting(TokenizerFiles(file="tokenizer.json"), tmp_path)


def test_without_a_file_bytes_are_the_bound() -> None:
    """No tokenizer finds more tokens in a text than it has bytes."""
    counted = counting(None).count_now(chat("日本 hello"))

    assert not counted.exact
    assert counted.tokens == len("日本 hello".encode()) + counter.PER_MESSAGE + counter.AROUND


def test_an_encoding_counts_as_openai_documents() -> None:
    """Three tokens around a message, its role, its text, and three before the answer."""
    encoding = seam.encoding("o200k_base")
    text = "How many tokens has this? Ça va, 你好."

    counted = counting(TokenizerFiles(encoding="o200k_base")).count_now(chat(text))

    assert counted.exact
    assert counted.tokens == len(encoding.encode(text)) + len(encoding.encode("user")) + 3 + 3


def png(width: int, height: int) -> str:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk).decode()
    return f"data:image/png;base64,{data}"


@pytest.mark.parametrize(
    ("model", "image", "tokens"),
    [
        # 1024 x 1024 shrinks to 768 x 768: four tiles; 2048 x 4096 to 768 x 1536: six.
        ("openai/gpt-4o", Image(1024, 1024, "high"), 85 + 4 * 170),
        ("openai/gpt-4o-2024-08-06", Image(2048, 4096, "high"), 85 + 6 * 170),
        ("openai/gpt-4o", Image(4096, 8192, "low"), 85),
        ("openrouter/openai/gpt-4o-mini", Image(512, 512), 2833 + 5667),
        ("openai/gpt-4o", Image(), 85 + 8 * 170),
        ("openai/gpt-5-mini", Image(1024, 1024), 1659),
        ("anthropic/claude-sonnet-4-6", Image(1000, 1000), 1334),
        ("anthropic/claude-sonnet-4-6", Image(200, 200), 54),
        ("anthropic/claude-sonnet-4-6", Image(), 4784),
        ("openai/some-local-model", Image(1000, 1000), 2880),
        ("openai/some-local-model", Image(2800, 2800), 10_000),
        ("openai/some-local-model", Image(), images.MOST),
    ],
)
def test_an_image_costs_what_its_provider_documents(model: str, image: Image, tokens: int) -> None:
    assert images.rule_for(model)(image) == tokens


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "image_url", "image_url": {"url": png(512, 512)}}, 255),
        ({"type": "image_url", "image_url": {"url": png(512, 512), "detail": "low"}}, 85),
        ({"type": "input_image", "image_url": png(512, 512)}, 255),
        ({"type": "image", "source": {"type": "base64", "data": png(9, 9).split(",")[1]}}, 255),
        ({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, 1445),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, 1445),
    ],
    ids=["openai", "low-detail", "responses", "anthropic", "a-link", "not-an-image"],
)
def test_images_are_found_in_every_dialect(part: dict[str, Any], tokens: int) -> None:
    """What an image adds is the rule's figure, whatever its encoded size."""
    used = counting(TokenizerFiles(encoding="o200k_base"), model="openai/gpt-4o")
    without = used.count_now(chat([{"type": "text", "text": "a"}] * 2)).tokens

    counted = used.count_now(chat([{"type": "text", "text": "a"}] * 2 + [part]))

    assert (counted.tokens - without, counted.exact) == (tokens, False)


WORDS = "The quick brown fox jumps over the lazy dog, and nobody counts how often. "


@pytest.mark.parametrize("kind", ["file", "encoding", "bytes"])
def test_a_long_prompt_does_not_hold_the_event_loop(own: Counter, kind: str) -> None:
    """While 100,000 tokens are counted, the loop is never away for more than 15 ms."""
    used = own
    if kind != "file":
        used = counting(TokenizerFiles(encoding="o200k_base") if kind == "encoding" else None)
    body = chat(*[WORDS * 700] * 9)  # 9 x 11,200 tokens of o200k_base
    size = len(json.dumps(body))

    async def main() -> tuple[float, int]:
        longest, last = 0.0, time.perf_counter()
        counting_it = asyncio.ensure_future(used.count(body, size))
        while not counting_it.done():
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return longest, (await counting_it).tokens

    # A busy machine takes the loop away now and then, a lock that is kept takes it every time.
    longest, tokens = min(asyncio.run(main()) for _ in range(8))

    assert tokens > 100_000
    assert longest < 0.015
