"""Bad input is the caller's fault: a clear 4xx in the path's own shape, and nothing is sent."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator

import pytest

from tests.proxy.calls import chat, completion, embedding, refused, response
from tests.proxy.models import NOTHING

PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
]
TEN_MEGABYTES = 10_000_000


@pytest.fixture(name="acme", scope="module")
def _acme(new_tenant):
    return new_tenant("acme", models=["cloud-eu", "claude-eu", "embed"])


@pytest.fixture(autouse=True)
def _still_serves(p, providers, acme) -> Iterator[None]:
    """After each case nothing has reached a provider, and the next call is served."""
    yield
    assert providers.seen() == NOTHING
    assert p.post("/v1/chat/completions", acme.key, chat("cloud-eu")).status_code == 200


DOCUMENTS = [
    pytest.param(b"", id="empty"),
    pytest.param(b"{", id="cut-off"),
    pytest.param(b"model=cloud-eu", id="not-json"),
    pytest.param(b"{'model': 'cloud-eu'}", id="single-quotes"),
    pytest.param(b'{"model": "cloud-eu"} x', id="trailing-text"),
    pytest.param(b'{"model": NaN}', id="nan"),
    pytest.param(b"null", id="null"),
    pytest.param(b"[]", id="list"),
    pytest.param(b"17", id="number"),
    pytest.param(b'"text"', id="text"),
    pytest.param(b"true", id="flag"),
    pytest.param(b"{}", id="no-field"),
    pytest.param(b"[" * 100_000, id="deep-and-cut-off"),
    pytest.param(b"[" * 100_000 + b"]" * 100_000, id="deep"),
    pytest.param(b'{"a":' * 5_000 + b"1" + b"}" * 5_000, id="deep-objects"),
    pytest.param(b'{"model": "cloud-eu", "messages": "\xff\xfe"}', id="invalid-utf-8"),
    pytest.param(b'\xef\xbb\xbf{"model": "cloud-eu"}', id="byte-order-mark"),
    pytest.param('{"model": "cloud-eu"}'.encode("utf-16"), id="utf-16"),
    pytest.param(b'{"model": "\\ud800"}', id="lone-surrogate"),
    pytest.param(b'{"\\udc00": 1}', id="lone-surrogate-as-name"),
    pytest.param(b'{"model": "\xed\xa0\x80"}', id="raw-surrogate"),
    pytest.param(b'{"model": "a\\u0000b"}', id="escaped-null"),
    pytest.param(b'{"a\\u0000": 1}', id="null-in-a-name"),
    pytest.param(b'{"model": "a\x00b"}', id="raw-null"),
    pytest.param(b"1" * 100_000, id="a-number-of-100000-digits"),
    pytest.param(b'{"model": 1e999999}', id="beyond-float"),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("content", DOCUMENTS)
def test_a_document_that_is_no_call(p, acme, path, content):
    """Whatever is not a JSON object with the path's fields is refused as malformed."""
    answer = p.post(path, acme.key, content=content)

    refused(answer, 400, "invalid_request_error")


WRONG = [
    {"model": None},
    {"model": ""},
    {"model": []},
    {"model": ["cloud-eu", "cloud-us"]},
    {"model": {"name": "cloud-eu"}},
    {"model": 7},
    {"model": True},
    {"model": "m" * 100_000},
    {"stream": "yes"},
    {"stream": 1},
    {"temperature": "hot"},
    {"max_tokens": "abc"},
    {"max_tokens": "50"},
    {"max_tokens": -1},
    {"max_tokens": 0},
    {"max_tokens": 1.5},
    {"max_tokens": True},
    {"max_tokens": 10**30},
    {"max_tokens": [50]},
    {"metadata": "text"},
    {"metadata": [1]},
    {"metadata": {f"name{number}": "x" for number in range(100)}},
]
TEXTS = {
    "/v1/chat/completions": (chat, "messages"),
    "/v1/completions": (completion, "prompt"),
    "/v1/responses": (response, "input"),
    "/v1/messages": (chat, "messages"),
}


@pytest.mark.parametrize("path", TEXTS)
@pytest.mark.parametrize("fields", WRONG, ids=lambda fields: json.dumps(fields)[:40])
def test_a_field_of_the_wrong_type(p, acme, path, fields):
    """The refusal is a 400, and names the field."""
    make, _ = TEXTS[path]
    if path == "/v1/responses":
        fields = {name.replace("max_tokens", "max_output_tokens"): v for name, v in fields.items()}

    body = {**make("cloud-eu"), **fields}

    error = refused(p.post(path, acme.key, body), 400, "invalid_request_error")

    assert error["param"] == next(iter(fields))


MESSAGES = [
    pytest.param({}, id="empty"),
    pytest.param({"content": "x"}, id="no-role"),
    pytest.param({"role": 7, "content": "x"}, id="role-is-a-number"),
    pytest.param({"role": "user", "content": 7}, id="content-is-a-number"),
    pytest.param({"role": "user", "content": {"a": 1}}, id="content-is-an-object"),
    pytest.param({"role": "user", "content": [7]}, id="part-is-a-number"),
    pytest.param({"role": "user", "content": [{}]}, id="part-is-empty"),
    pytest.param({"role": "user", "content": [{"type": 7}]}, id="part-type-is-a-number"),
    pytest.param({"role": "user", "content": [{"type": "text", "text": 7}]}, id="text-is-a-number"),
    pytest.param({"role": "assistant", "tool_calls": 5}, id="tool-calls-is-a-number"),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("model", ["cloud-eu", "claude-eu"])
@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_wrong_shape(p, acme, path, model, message):
    """A message that no dialect knows is the caller's fault, whichever provider it was for."""
    answer = p.post(path, acme.key, chat(model, messages=[message]))

    refused(answer, 400, "invalid_request_error")


ODD = [
    {"messages": [{"role": "user", "content": [{"type": "nonsense", "x": 1}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": 7}]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": 7}]}]},
    {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
    {"messages": [{"role": "nonsense", "content": "x"}]},
    {"messages": [{"role": "tool", "content": "x"}]},
    {"messages": [{"role": "system", "content": "only"}]},
    {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
    {"tools": [{"type": "function"}]},
    {"tools": [{"type": "function", "function": {}}]},
    {"tools": [{"type": "custom", "name": 7}]},
    {"tool_choice": {}},
    {"response_format": {}},
    {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "json_schema", "json_schema": 7}},
    {"logit_bias": {"a": "b"}},
    {"thinking": {"type": "enabled"}},
    {"stream_options": {"x": 1}, "stream": True},
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("model", ["cloud-eu", "claude-eu"])
@pytest.mark.parametrize("fields", ODD, ids=lambda fields: json.dumps(fields)[:70])
def test_what_a_provider_may_or_may_not_take(p, providers, acme, path, model, fields):
    """What is odd inside an allowed field is served or refused; it is no fault of the gateway's."""
    answer = p.post(path, acme.key, {**chat(model), **fields})

    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert answer.json()["error"]["code"] in {"invalid_request_error", "param_not_allowed"}
    providers.reset()


@pytest.mark.parametrize("prompt", [[1, 2], [[1], [2]], ["a", "b"]], ids=json.dumps)
def test_a_prompt_of_tokens_for_a_provider_that_takes_none(p, providers, acme, prompt):
    """A prompt in a form that the model's provider has no word for is a 400."""
    answer = p.post("/v1/completions", acme.key, completion("claude-eu", prompt=prompt))

    assert answer.status_code < 500, answer.text
    providers.reset()


@pytest.mark.parametrize("path", TEXTS)
@pytest.mark.parametrize("value", [None, {}, 7, True, [], [[]], [None], [7.5]], ids=json.dumps)
def test_a_prompt_of_the_wrong_type(p, acme, path, value):
    """No message, no prompt, or one that is not text."""
    make, name = TEXTS[path]

    refused(p.post(path, acme.key, make("cloud-eu", **{name: value})), 400, "invalid_request_error")


@pytest.mark.parametrize("value", [None, {}, 7, True, [], [[]], [None], [7.5]], ids=json.dumps)
def test_an_embedding_of_the_wrong_type(p, acme, value):
    """No input, or one that is neither text nor tokens."""
    answer = p.post("/v1/embeddings", acme.key, embedding("embed", input=value))

    refused(answer, 400, "invalid_request_error")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["model", "messages", "prompt", "input"])
def test_a_model_given_twice_is_the_one_that_is_checked(p, acme, path, name):
    """Of two fields with one name the checked one is the one that is sent: here neither is."""
    content = b'{"model": "cloud-eu", "model": "cloud-us", "messages": [{"role": "user", ' + (
        b'"content": "x"}], "prompt": "x", "input": "x", "max_tokens": 9}'
    )

    answer = p.post(path, acme.key, content=content)

    assert answer.status_code in {400, 403}
    assert answer.json()["error"]["code"] in {"param_not_allowed", "model_not_allowed"}


def test_the_last_of_two_models_is_checked_and_sent(p, providers, acme):
    """What was checked is what is sent on, byte for byte of our own making."""
    body = '{"model": "%s", "model": "%s", "messages": [{"role": "user", "content": "x"}]}'

    refused(
        p.post(
            "/v1/chat/completions", acme.key, content=(body % ("cloud-eu", "cloud-us")).encode()
        ),
        403,
        "model_not_allowed",
    )
    answer = p.post(
        "/v1/chat/completions", acme.key, content=(body % ("cloud-us", "cloud-eu")).encode()
    )

    assert answer.status_code == 200
    assert providers.seen() == {"A": 1, "B": 0, "L": 0}
    providers.reset()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("announced", [True, False], ids=["content-length", "chunked"])
def test_a_body_of_ten_megabytes(p, acme, path, announced):
    """A body over the limit is refused, whether or not it says so beforehand."""
    body = json.dumps({"model": "cloud-eu", "x": "y" * TEN_MEGABYTES}).encode()
    content = body if announced else iter([body[:5_000_000], body[5_000_000:]])

    answer = p.post(path, acme.key, content=content)  # type: ignore[arg-type]

    assert "larger than" in refused(answer, 400, "invalid_request_error")["message"]


def test_ten_megabytes_without_a_key(p):
    """Who shows no key is told so, and not that the body is too large."""
    body = json.dumps({"model": "cloud-eu", "x": "y" * TEN_MEGABYTES}).encode()

    refused(p.post("/v1/chat/completions", None, content=body), 401, "invalid_api_key")


@pytest.mark.parametrize(
    "length", [b"-1", b"abc", b"1e3", b"99999999999999999999", b"5, 6", b"0x10"]
)
def test_a_false_content_length(p, acme, length):
    """A length that is no number, or a lie, ends the request without an error of ours."""
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer " + acme.key.encode() + b"\r\nContent-Length: " + length
    )
    with socket.create_connection(("127.0.0.1", p.port), timeout=10) as wire:
        wire.sendall(head + b"\r\n\r\n{}")
        wire.shutdown(socket.SHUT_WR)
        answer = wire.recv(4096)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "x"])
def test_a_compressed_body(p, acme, path, encoding):
    """Compression is refused: a small body could become a large one."""
    body = gzip.compress(json.dumps(chat("cloud-eu")).encode())

    answer = p.post(path, acme.key, content=body, headers={"Content-Encoding": encoding})

    assert refused(answer, 400, "invalid_request_error")["param"] == "content-encoding"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/xml", "application/jsonp", "application/json5", "", ";", "x"],
)
def test_another_content_type(p, acme, path, kind):
    """Only `application/json` is read."""
    content = json.dumps(chat("cloud-eu")).encode()

    answer = p.post(path, acme.key, content=content, headers={"Content-Type": kind})

    assert refused(answer, 400, "invalid_request_error")["param"] == "content-type"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "secret",
    [
        pytest.param("sk-wg-" + "a" * 100_000, id="100000-characters"),
        pytest.param("", id="empty"),
        pytest.param("sk-wg-", id="only-the-start"),
        pytest.param("sk-wg-ключ", id="cyrillic"),
        pytest.param("sk-wg-' OR 1=1 --", id="sql"),
        pytest.param("sk-wg-%00", id="encoded-null"),
        pytest.param("sk-wg-\xff\xfe", id="latin-1"),
    ],
)
def test_a_key_that_is_none(p, path, secret):
    """A key of any length or script that opens nothing is one and the same 401."""
    header = f"Bearer {secret}".strip().encode("utf-8")

    answer = p.client.post(path, json=chat("cloud-eu"), headers={b"Authorization": header})

    refused(answer, 401, "invalid_api_key")


@pytest.mark.parametrize("header", ["x-anything", "x-task-id", "user-agent", "cookie"])
def test_a_huge_header(p, acme, header):
    """A header of 60,000 bytes is refused or dropped; it is not an error of ours."""
    answer = p.post(
        "/v1/chat/completions", acme.key, chat("no-such-model"), headers={header: "x" * 60_000}
    )

    assert 400 <= answer.status_code < 500


def test_a_header_that_came_twice(p, acme):
    """Two keys, or two of any header that decides something, are refused."""
    twice = [("Authorization", f"Bearer {acme.key}")] * 2
    answer = p.client.post("/v1/chat/completions", json=chat("cloud-eu"), headers=twice)

    refused(answer, 400, "invalid_request_error")


def test_two_keys_that_differ(p, acme):
    """A request that shows two different keys is nobody's."""
    other = {"x-api-key": "sk-wg-other"}

    refused(
        p.post("/v1/chat/completions", acme.key, chat("cloud-eu"), headers=other),
        401,
        "invalid_api_key",
    )


@pytest.mark.parametrize("scheme", ["Basic", "bearer2", "Token", "", "Bearer,"])
def test_another_scheme(p, acme, scheme):
    """A key under another scheme than Bearer is no key."""
    headers = {"Authorization": f"{scheme} {acme.key}".strip()}

    refused(
        p.client.post("/v1/chat/completions", json=chat("cloud-eu"), headers=headers),
        401,
        "invalid_api_key",
    )


def test_two_output_caps_that_differ(p, acme):
    """Two different caps are refused; the same one twice is not."""
    body = chat("cloud-eu", max_completion_tokens=60)

    refused(p.post("/v1/chat/completions", acme.key, body), 400, "invalid_request_error")


@pytest.mark.parametrize("header", ["x-task-id", "x-task-type"])
@pytest.mark.parametrize("value", ["", "x" * 257])
def test_a_task_without_a_usable_name(p, acme, header, value):
    """The name of a task has 1 to 256 characters."""
    answer = p.post("/v1/chat/completions", acme.key, chat("cloud-eu"), headers={header: value})

    assert refused(answer, 400, "invalid_request_error")["param"] == header


@pytest.mark.parametrize("header", ["x-task-id", "x-task-type", "x-data-class", "x-anything"])
@pytest.mark.parametrize("value", ["夜間バッチ".encode(), b"\xff\xfe", b"a\tb"], ids=repr)
def test_a_header_that_is_not_ascii(p, acme, header, value):
    """A header in another script, or in none, is taken or refused; ours stay plain ASCII."""
    answer = p.post("/v1/chat/completions", acme.key, chat("none"), headers={header: value})

    assert answer.status_code in {400, 403}
    assert all(name.isascii() and text.isascii() for name, text in answer.headers.raw)


def test_a_client_that_leaves_while_it_sends(p, acme):
    """Half a body and a closed connection leave nothing behind."""
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000\r\nAuthorization: Bearer " + acme.key.encode() + b'\r\n\r\n{"model":'
    )

    with socket.create_connection(("127.0.0.1", p.port), timeout=10) as wire:
        wire.sendall(head)

    assert p.process.poll() is None


@pytest.mark.parametrize(
    "line",
    [
        b"GET /v1/models\r\n\r\n",
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n",
    ],
    ids=[
        "http-0.9",
        "binary",
        "http-9.9",
        "bad-chunk",
        "two-lengths",
        "100000-slashes",
        "header-without-colon",
    ],
)
def test_what_is_not_http(p, line):
    """The server answers 4xx or hangs up."""
    with socket.create_connection(("127.0.0.1", p.port), timeout=10) as wire:
        wire.sendall(line)
        wire.shutdown(socket.SHUT_WR)
        answer = wire.recv(4096)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
