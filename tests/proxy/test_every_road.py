"""O-32: every road into a model, for a tenant that may use it and for one that may not."""

from __future__ import annotations

import anthropic
import openai
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.fakes.script import fails
from tests.proxy.calls import PROMPT, chat, completion, embedding, messages, refused, response
from tests.proxy.models import NOTHING

METERED = {
    "/chat/completions": chat,
    "/completions": completion,
    "/embeddings": embedding,
    "/responses": response,
    "/messages": messages,
}
STREAMED = ["/chat/completions", "/completions", "/responses", "/messages"]
CLOSED = [
    "/v1/images/generations",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/rerank",
    "/v1/moderations",
    "/v1/batches",
    "/v1/files",
    "/v1/fine_tuning/jobs",
    "/v1/assistants",
    "/v1/threads",
    "/v1/threads/x/runs",
    "/v1/responses/resp_1",
    "/v1/responses/compact",
    "/v1/messages/count_tokens",
    "/v1/messages/batches",
    "/openai/v1/chat/completions",
    "/anthropic/v1/messages",
    "/vertex_ai/v1/x",
    "/engines/out-only/completions",
    "/engines/out-only/chat/completions",
    "/openai/deployments/out-only/chat/completions",
    "/queue/chat/completions",
    "/cursor/chat/completions",
    "/v1beta/models/out-only:generateContent",
    "/models/out-only:streamGenerateContent",
    "/v1/vector_stores",
    "/v1/realtime/client_secrets",
    "/v1/videos",
    "/v1/ocr",
    "/v1/search",
    "/v1/containers",
    "/a2a/x",
    "/mcp",
    "/mcp/tools",
    "/prompts/test",
    "/health",
    "/key/generate",
    "/key/info",
    "/user/new",
    "/team/new",
    "/spend/logs",
    "/config/update",
    "/model/new",
    "/model/info",
    "/v1/model/info",
    "/cache/flushall",
    "/settings",
    "/router/settings",
    "/routes",
    "/openapi.json",
    "/metrics",
    "/ui",
    "/login",
]
SOCKETS = ["/v1/realtime", "/realtime", "/v1/responses", "/responses", "/v1/live/sessions", "/mcp"]


@pytest.fixture(name="fresh", scope="module")
def _fresh(new_tenant):
    return new_tenant("fresh", models=["out-only", "claude-eu"])


@pytest.fixture(name="bare", scope="module")
def _bare(new_tenant):
    """A tenant with a good key and not one grant."""
    return new_tenant("bare", providers=(), regions=())


@pytest.mark.parametrize("path", METERED)
@pytest.mark.parametrize("version", ["/v1", ""], ids=["v1", "bare"])
def test_a_granted_call_is_sent_once(p, providers, fresh, path, version):
    """Each governed path answers 200, and the provider saw exactly one request."""
    answer = p.post(version + path, fresh.key, METERED[path]("out-only"))

    assert answer.status_code == 200, answer.text
    assert providers.seen() == {"A": 1, "B": 0, "L": 0}
    assert PROMPT in str(providers.a.journal[0].body)
    assert {name: answer.headers[name] for name in answer.headers if name.startswith("x-wg-")} == {
        "x-wg-request-id": answer.headers["x-wg-request-id"],
        "x-wg-model": "out-only",
        "x-wg-provider": "alpha",
        "x-wg-region": "eu",
        "x-wg-route": "by-name",
        "x-wg-attempts": "1",
        "x-wg-adjusted": "none",
    }
    assert not [name for name in answer.headers if "litellm" in name or "llm_provider" in name]


@pytest.mark.parametrize("path", STREAMED)
@pytest.mark.parametrize("version", ["/v1", ""], ids=["v1", "bare"])
def test_a_granted_stream_is_sent_once(p, providers, fresh, path, version):
    """A stream carries the same headers, before its first byte."""
    answer = p.post(version + path, fresh.key, METERED[path]("out-only", stream=True))

    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-wg-attempts"] == "1"
    assert answer.headers["x-wg-region"] == "eu"
    assert "word2" in answer.text
    assert providers.seen() == {"A": 1, "B": 0, "L": 0}


@pytest.mark.parametrize("path", METERED)
@pytest.mark.parametrize("version", ["/v1", ""], ids=["v1", "bare"])
@pytest.mark.parametrize("model", ["out-only", "no-such-model"])
def test_without_a_grant_nothing_is_sent(p, providers, bare, path, version, model):
    """The refusal is the same whether or not the model exists."""
    answer = p.post(version + path, bare.key, METERED[path](model))

    error = refused(answer, 403, "model_not_allowed")
    assert error["message"] == "This key may not use the requested model."
    assert providers.seen() == NOTHING


@pytest.mark.parametrize("path", CLOSED)
def test_an_unmetered_road_is_closed(p, providers, fresh, bare, path):
    """What is not governed is not served, to either tenant, by either method."""
    for tenant in (fresh, bare):
        refused(p.post(path, tenant.key, chat("out-only")), 404, "route_not_served")
        refused(p.get(path, tenant.key), 404, "route_not_served")

    assert providers.seen() == NOTHING


@pytest.mark.parametrize("path", SOCKETS)
def test_a_websocket_is_refused(p, providers, fresh, bare, path):
    """No tenant opens a socket, with the key in a header, a protocol or the query."""
    for tenant in (fresh, bare):
        for headers, query, protocols in (
            ({"Authorization": f"Bearer {tenant.key}"}, "", None),
            ({}, f"&api_key={tenant.key}", None),
            ({}, "", ["realtime", f"openai-insecure-api-key.{tenant.key}"]),
        ):
            with pytest.raises(InvalidStatus) as refusal:
                connect(
                    f"ws://127.0.0.1:{p.port}{path}?model=out-only{query}",
                    additional_headers=headers,
                    subprotocols=protocols,
                    proxy=None,
                )
            assert refusal.value.response.status_code == 404

    assert providers.seen() == NOTHING


@pytest.mark.parametrize("path", METERED)
def test_a_preflight_asks_no_provider(p, providers, path):
    """`OPTIONS` tells a browser about origins; it runs nothing and shows nothing."""
    preflight = {"Origin": "http://x", "Access-Control-Request-Method": "POST"}

    for headers in ({}, preflight):
        answer = p.client.request("OPTIONS", f"/v1{path}", headers=headers)
        assert answer.status_code in {200, 204, 400, 404, 405}
        assert "litellm" not in (answer.text + str(answer.headers)).lower()

    assert providers.seen() == NOTHING


def test_the_listing_shows_what_the_key_may_use(p, providers, fresh, bare):
    """`/v1/models` answers every good key, with its own models and no others."""
    for path in ("/v1/models", "/models"):
        listed = p.get(path, fresh.key)
        assert listed.status_code == 200
        assert {model["id"] for model in listed.json()["data"]} == {"out-only", "claude-eu"}
        assert p.get(path, bare.key).json()["data"] == []

    assert providers.seen() == NOTHING


def test_the_openai_client(p, providers, fresh, bare):
    """The stock client gets answers, streams, and its own kinds of error."""
    with openai.OpenAI(api_key=fresh.key, base_url=f"{p.url}/v1", max_retries=0) as client:
        ask = [{"role": "user", "content": PROMPT}]
        whole = client.chat.completions.create(model="out-only", messages=ask, max_tokens=9)
        with client.chat.completions.create(
            model="out-only", messages=ask, max_tokens=9, stream=True
        ) as stream:
            words = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
        embedded = client.embeddings.create(model="out-only", input="x")
        answered = client.responses.create(model="out-only", input="x", max_output_tokens=9)
        completed = client.completions.create(model="out-only", prompt="x", max_tokens=9)
        listed = [model.id for model in client.models.list().data]
        with pytest.raises(openai.PermissionDeniedError) as refusal:
            client.chat.completions.create(model="cloud-us", messages=ask)

    assert whole.choices[0].message.content == "word0 word1 word2"
    assert words == "word0 word1 word2 "
    assert len(embedded.data[0].embedding) == 3
    assert answered.output_text == "word0 word1 word2"
    assert completed.choices[0].text == "word0 word1 word2"
    assert sorted(listed) == ["claude-eu", "out-only"]
    assert refusal.value.code == "model_not_allowed"
    assert providers.seen() == {"A": 5, "B": 0, "L": 0}


def test_the_openai_client_without_a_key(p, providers):
    """A wrong key is the client's own authentication error."""
    with (
        openai.OpenAI(api_key="sk-wrong", base_url=f"{p.url}/v1", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refusal,
    ):
        client.chat.completions.create(
            model="out-only", messages=[{"role": "user", "content": "x"}]
        )

    assert refusal.value.code == "invalid_api_key"
    assert providers.seen() == NOTHING


@pytest.mark.parametrize("model", ["claude-eu", "out-only"])
def test_the_anthropic_client(p, providers, fresh, model):
    """The stock client, whose key is in `x-api-key`, reaches both kinds of provider."""
    with anthropic.Anthropic(api_key=fresh.key, base_url=p.url, max_retries=0) as client:
        ask = [{"role": "user", "content": PROMPT}]
        whole = client.messages.create(model=model, max_tokens=9, messages=ask)
        with client.messages.stream(model=model, max_tokens=9, messages=ask) as stream:
            streamed = stream.get_final_message()
        with pytest.raises(anthropic.PermissionDeniedError) as refusal:
            client.messages.create(model="claude-us", max_tokens=9, messages=ask)

    assert whole.content[0].text == "word0 word1 word2"
    assert streamed.content[0].text.strip() == "word0 word1 word2"
    assert refusal.value.body["error"]["code"] == "model_not_allowed"
    assert providers.seen() == {"A": 2, "B": 0, "L": 0}


@pytest.mark.parametrize("path", METERED)
def test_a_failing_provider_is_told_of_in_the_paths_own_shape(p, providers, fresh, path):
    """A provider's fault is a 502 of ours on every path."""
    providers.a.always(fails(500))

    answer = p.post(f"/v1{path}", fresh.key, METERED[path]("out-only"))

    refused(answer, 502, "upstream_error")
    assert providers.b.journal == []


@pytest.mark.parametrize("path", METERED)
def test_every_try_is_counted(p, providers, fresh, path):
    """No client library tries again behind our back: the header says what the provider saw."""
    providers.a.always(fails(500))

    answer = p.post(f"/v1{path}", fresh.key, METERED[path]("out-only"))

    assert (answer.headers["x-wg-attempts"], len(providers.a.journal)) == ("2", 2)


@pytest.mark.parametrize("path", METERED)
def test_a_providers_retry_after_is_passed_on(p, providers, fresh, path):
    """How long to wait is the one thing a provider says that a client should hear."""
    providers.a.always(fails(429, retry_after="1"))

    answer = p.post(f"/v1{path}", fresh.key, METERED[path]("out-only"))

    refused(answer, 429, "upstream_rate_limited")
    assert answer.headers["retry-after"] == "1"
