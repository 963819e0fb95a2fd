"""No field and no header of a call steers LiteLLM, a provider or the bookkeeping.

Cases O-19 and O-20 (what of it does not need budgets). Every value points at X, a listener
of the attacker's; the shared fixture asserts after each test that X was not even connected to.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.script import fails
from tests.proxy.calls import chat, messages, refused
from tests.proxy.models import NOTHING, PROVIDER_KEYS

#: Stands for the attacker's address; the port is known only at run time.
X = "http://attacker.invalid"

FIELDS: dict[str, Any] = {
    # where the call goes
    "api_base": X,
    "base_url": X,
    "custom_llm_provider": "anthropic",
    "model_list": [
        {"model_name": "cloud-eu", "litellm_params": {"model": "openai/x", "api_base": X}}
    ],
    "user_config": {"model_list": [{"model_name": "m", "litellm_params": {"model": "openai/x"}}]},
    "litellm_params": {"api_base": X},
    "litellm_embedding_config": {"api_base": X},
    "model_info": {"id": "us-1", "input_cost_per_token": 0},
    "model_group": "cloud-us",
    "model_alias_map": {"cloud-eu": "cloud-us"},
    "specific_deployment": True,
    "default_deployment": "us-1",
    "proxy_server_request": {"url": X},
    "proxy_url": X,
    "aws_region_name": "us-east-1",
    "aws_bedrock_runtime_endpoint": X,
    "aws_sts_endpoint": X,
    "vertex_location": "us-central1",
    "vertex_project": "other",
    "region_name": "us",
    "allowed_model_region": "us",
    "watsonx_region_name": "us",
    "use_in_pass_through": True,
    # on whose account
    "api_key": "sk-smuggled",
    "api_version": "2020-01-01",
    "organization": "org-smuggled",
    "litellm_credential_name": "other",
    "azure_ad_token": "smuggled",
    "aws_access_key_id": "smuggled",
    "aws_secret_access_key": "smuggled",
    "aws_role_name": "smuggled",
    "aws_profile_name": "smuggled",
    "vertex_credentials": "smuggled",
    "ssl_verify": False,
    "client": "smuggled",
    "configurable_clientside_auth_params": ["api_base"],
    # what is sent along
    "extra_body": {"api_base": X, "max_tokens": 4096, "n": 9},
    "extra_headers": {"Host": X, "Authorization": "Bearer smuggled"},
    "headers": {"Host": X},
    "extra_query": {"model": "cloud-us"},
    "additional_drop_params": ["max_tokens"],
    "drop_params": True,
    "allowed_openai_params": ["api_base"],
    # to whom it goes on
    "fallbacks": ["cloud-us"],
    "context_window_fallbacks": [{"cloud-eu": ["cloud-us"]}],
    "content_policy_fallbacks": [{"cloud-eu": ["cloud-us"]}],
    "context_window_fallback_dict": {"cloud-eu": "cloud-us"},
    "default_fallbacks": ["cloud-us"],
    "router_settings_override": {"fallbacks": [{"cloud-eu": ["cloud-us"]}]},
    "disable_fallbacks": True,
    "num_retries": 9,
    "max_retries": 9,
    "retry_policy": {"InternalServerErrorRetries": 9},
    "timeout": 0.001,
    "request_timeout": 0.001,
    "stream_timeout": 0.001,
    "priority": 0,
    "fastest_response": True,
    "silent_model": "cloud-us",
    "mock_testing_fallbacks": True,
    "mock_testing_context_fallbacks": True,
    "mock_testing_rate_limit_error": True,
    # what is answered without a provider, or kept
    "mock_response": "hi",
    "mock_timeout": True,
    "mock_delay": 1,
    "mock_tool_calls": [],
    "cache": {"no-cache": True, "namespace": "other"},
    "caching": True,
    "ttl": 60,
    "s-maxage": 60,
    "prompt_id": "other",
    "prompt_version": 2,
    "prompt_variables": {"a": "b"},
    "prompt_label": "other",
    "guardrails": ["off"],
    "disable_global_guardrail": True,
    "plugins": [X],
    "web_search_options": {"search_context_size": "high"},
    "mcp_servers": [{"url": X}],
    "callbacks": ["webhook"],
    "success_callback": ["langfuse"],
    "failure_callback": ["langfuse"],
    "langfuse_host": X,
    "langsmith_base_url": X,
    "arize_space_id": "other",
    # what is written down, and at which price
    "no-log": True,
    "no_log": True,
    "litellm_disabled_callbacks": ["all"],
    "turn_off_message_logging": False,
    "input_cost_per_token": 0,
    "output_cost_per_token": 0,
    "cache_read_input_token_cost": 0,
    "response_cost": 0,
    "base_model": "local-a",
    "tags": ["free"],
    "enable_tag_filtering": True,
    "spend_logs_metadata": {"a": "b"},
    "litellm_metadata": {"wicketgate_request": "smuggled"},
    "litellm_call_id": "smuggled",
    "litellm_trace_id": "smuggled",
    "litellm_session_id": "smuggled",
    "litellm_logging_obj": "smuggled",
    "user_api_key": "smuggled",
    "user_api_key_dict": {"user_role": "proxy_admin"},
    "user_api_key_auth": {"models": ["*"]},
    "user_api_key_alias": "smuggled",
    "hidden_params": {"response_cost": 0},
    "request_id": "smuggled",
    "target_model_names": "cloud-us",
    # what costs more than it says
    "service_tier": "priority",
    "background": True,
    "store": True,
    "previous_response_id": "resp_smuggled",
    "conversation": "conv_smuggled",
    "prompt": {"id": "pmpt_smuggled"},
    "container": "smuggled",
    "context_management": {"edits": []},
    "modalities": ["audio"],
    "audio": {"voice": "x", "format": "wav"},
    "wicketgate_request": "smuggled",
}

DIALECTS = {
    "openai": ("/v1/chat/completions", chat, "cloud-eu"),
    "anthropic": ("/v1/messages", messages, "claude-eu"),
}


@pytest.fixture(name="acme", scope="module")
def _acme(new_tenant):
    return new_tenant("acme", models=["cloud-eu", "claude-eu"])


def pointed(value: Any, address: str) -> Any:
    """Return *value* with X replaced by the attacker's real address."""
    if isinstance(value, dict):
        return {name: pointed(item, address) for name, item in value.items()}
    if isinstance(value, list):
        return [pointed(item, address) for item in value]
    return address if value == X else value


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_control_field_is_refused_by_name(p, providers, acme, dialect, field):
    """Alone at the top of the body, each is refused, and the refusal names it."""
    path, body, model = DIALECTS[dialect]
    value = pointed(FIELDS[field], providers.x.url)

    error = refused(p.post(path, acme.key, body(model, **{field: value})), 400, "param_not_allowed")

    assert error["param"] == field
    assert providers.seen() == NOTHING


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("outer", ["litellm_metadata", "extra_body", "litellm_params", "fallbacks"])
def test_nested_in_a_field_that_is_unpacked_it_is_refused(p, providers, acme, dialect, outer):
    """A field that LiteLLM would unpack into the call is refused with whatever it holds."""
    path, body, model = DIALECTS[dialect]

    for field, value in FIELDS.items():
        inner: Any = {field: pointed(value, providers.x.url)}
        nested = [{"model": "cloud-us", **inner}] if outer == "fallbacks" else inner
        answer = p.post(path, acme.key, body(model, **{outer: nested}))
        assert refused(answer, 400, "param_not_allowed")["param"] == outer

    assert providers.seen() == NOTHING


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nested_in_metadata_it_is_refused_or_without_effect(p, providers, acme, dialect):
    """`metadata` is the caller's to fill; what steers is refused, the rest goes nowhere."""
    path, body, model = DIALECTS[dialect]
    served = 0

    for field, value in FIELDS.items():
        metadata = {field: pointed(value, providers.x.url)}
        answer = p.post(path, acme.key, body(model, metadata=metadata))
        if answer.status_code != 200:
            assert refused(answer, 400, "param_not_allowed")["param"] == f"metadata.{field}"
            continue
        served += 1
        seen = providers.a.journal[-1].everything()
        assert field not in seen.partition("?")[2] + str(providers.a.journal[-1].body)
        assert "smuggled" not in seen

    assert providers.seen() == {"A": served, "B": 0, "L": 0}


def test_nested_two_deep_in_metadata_it_is_refused(p, providers, acme):
    """Metadata is flat text: an object in it is refused, whatever it holds."""
    for inner in (
        {"model_info": {"input_cost_per_token": 0}},
        {"x": {"api_base": providers.x.url}},
    ):
        answer = p.post("/v1/chat/completions", acme.key, chat("cloud-eu", metadata=inner))
        refused(answer, 400, "param_not_allowed")

    assert providers.seen() == NOTHING


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "spelling", ["API_BASE", "Api_Base", "api_base ", " api_base", "api_base\u200b", "apі_base"]
)
def test_another_spelling_is_another_unknown_field(p, providers, acme, dialect, spelling):
    """The fields are an allow-list: what is not on it is refused, however it is spelt."""
    path, body, model = DIALECTS[dialect]

    answer = p.post(path, acme.key, body(model, **{spelling: providers.x.url}))

    refused(answer, 400, "param_not_allowed")
    assert providers.seen() == NOTHING


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/embeddings", "/v1/responses"], ids=lambda path: path[4:]
)
def test_the_other_routes_refuse_the_same_fields(p, providers, acme, path):
    """Completions, embeddings and responses have allow-lists of their own."""
    content = {"prompt": "x"} if path == "/v1/completions" else {"input": "x"}

    for field, value in FIELDS.items():
        if field in content:
            continue
        body = {"model": "cloud-eu", **content, field: pointed(value, providers.x.url)}
        answer = p.post(path, acme.key, body)
        if field == "store":
            assert answer.status_code == 400
            continue
        assert refused(answer, 400, "param_not_allowed")["param"] == field

    assert providers.seen() == NOTHING


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"])
@pytest.mark.parametrize("style", ["form", "multipart", "text", "none"])
def test_only_json_bodies_are_read(p, providers, acme, path, style):
    """A form, which LiteLLM would take as well, is refused before its fields are looked at."""
    fields = {"model": "cloud-eu", "api_base": providers.x.url, "messages": "[]"}
    headers = {"Authorization": f"Bearer {acme.key}"}
    sent: dict[str, Any] = {
        "form": {"data": fields},
        "multipart": {"files": {name: (None, value) for name, value in fields.items()}},
        "text": {"content": b"{}", "headers": {"Content-Type": "text/plain"}},
        "none": {"content": b""},
    }[style]

    answer = p.client.post(path, **{**sent, "headers": {**headers, **sent.get("headers", {})}})

    refused(answer, 400, "invalid_request_error")
    assert providers.seen() == NOTHING


HEADERS = {
    "x-litellm-api-base": X,
    "x-litellm-num-retries": "7",
    "x-litellm-timeout": "0.001",
    "x-litellm-stream-timeout": "0.001",
    "x-litellm-tags": "smuggled",
    "x-litellm-model": "cloud-us",
    "x-litellm-model-id": "us-1",
    "x-litellm-call-id": "smuggled",
    "x-litellm-trace-id": "smuggled",
    "x-litellm-session-id": "smuggled",
    "x-litellm-end-user-id": "smuggled",
    "x-litellm-customer-id": "smuggled",
    "x-litellm-agent-id": "smuggled",
    "x-litellm-spend-logs-metadata": '{"a": "smuggled"}',
    "x-litellm-keepalive-seconds": "1",
    "x-litellm-disable-callbacks": "all",
    "x-litellm-enable-message-redaction": "false",
    "x-litellm-cache-key": "smuggled",
    "x-litellm-api-key": "sk-smuggled",
    "litellm-changed-by": "smuggled",
    "x-goog-api-key": "sk-smuggled",
    "api-key": "sk-smuggled",
    "ocp-apim-subscription-key": "sk-smuggled",
    "openai-organization": "smuggled",
    "openai-project": "smuggled",
    "x-forwarded-for": "203.0.113.9",
    "x-forwarded-host": "attacker.invalid",
    "forwarded": "for=203.0.113.9;host=attacker.invalid",
    "x-original-url": "/v1/models",
    "x-rewrite-url": "/key/info",
    "x-http-method-override": "DELETE",
    "x-mcp-auth": "smuggled",
    "x-mcp-servers": "smuggled",
    "langfuse_host": X,
    "cache-control": "no-store",
    "cookie": "token=smuggled",
    "x-wg-model": "cloud-us",
    "x-wg-region": "us",
    "x-pass-smuggled": "smuggled",
    "x-stainless-raw-response": "smuggled",
    "prefer": "smuggled",
    "host": "attacker.invalid",
    "user-agent": "smuggled/1",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "baggage": "smuggled=1",
    "referer": X,
    "origin": X,
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_header_has_an_effect(p, providers, acme, dialect):
    """Each steering header is dropped: the call is served as without it."""
    path, body, model = DIALECTS[dialect]

    for name, value in HEADERS.items():
        value = pointed(value, providers.x.url)
        answer = p.post(path, acme.key, body(model), headers={name: value})
        assert (answer.status_code, answer.headers["x-wg-region"]) == (200, "eu"), name
        seen = providers.a.journal[-1]
        assert "smuggled" not in seen.everything(), name
        assert value not in seen.headers.values() or name == "cache-control", name

    assert providers.seen() == {"A": len(HEADERS), "B": 0, "L": 0}


def test_no_header_buys_more_tries(p, providers, acme):
    """A header that asks for seven retries gets the one that is configured."""
    providers.a.always(fails(500))
    header = {"x-litellm-num-retries": "7"}

    answer = p.post("/v1/chat/completions", acme.key, chat("cloud-eu"), headers=header)

    refused(answer, 502, "upstream_error")
    assert providers.seen() == {"A": 2, "B": 0, "L": 0}


@pytest.mark.parametrize(
    "name", ["x-litellm-api-key", "api-key", "x-goog-api-key", "ocp-apim-subscription-key", "key"]
)
def test_a_key_is_read_from_two_headers_only(p, providers, acme, name):
    """LiteLLM would take a key from many places; the gate knows `Authorization` and `x-api-key`."""
    answer = p.post("/v1/chat/completions", None, chat("cloud-eu"), headers={name: acme.key})
    refused(answer, 401, "invalid_api_key")
    answer = p.post(f"/v1/chat/completions?key={acme.key}", None, chat("cloud-eu"))
    refused(answer, 401, "invalid_api_key")

    assert providers.seen() == NOTHING


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_query_steers_nothing(p, providers, acme, dialect):
    """Other query parameters than `model` are dropped."""
    path, body, model = DIALECTS[dialect]
    query = f"?api_base={providers.x.url}&target_model_names=cloud-us&api_version=1&beta=true"

    answer = p.post(f"{path}{query}", acme.key, body(model))

    assert answer.status_code == 200
    assert providers.seen() == {"A": 1, "B": 0, "L": 0}
    assert "?" not in providers.a.journal[0].path


def test_o19_a_providers_key_goes_to_its_provider_only(p, providers, acme, new_tenant):
    """Each provider sees its own key, and neither another's nor the caller's."""
    everyone = new_tenant("everyone", models=["cloud-eu", "cloud-us", "local-a", "claude-eu"])
    for path, model in (
        ("/v1/chat/completions", "cloud-eu"),
        ("/v1/chat/completions", "cloud-us"),
        ("/v1/chat/completions", "local-a"),
        ("/v1/messages", "claude-eu"),
    ):
        assert p.post(path, everyone.key, chat(model)).status_code == 200

    for provider in (providers.a, providers.b, providers.l):
        own = PROVIDER_KEYS[f"WG_TEST_{provider.name}_KEY"]
        text = " ".join(seen.everything() for seen in provider.journal)
        assert own in text
        assert [key for key in PROVIDER_KEYS.values() if key in text] == [own]
        assert everyone.key not in text


def test_what_reaches_a_provider_is_what_was_allowed(p, providers, acme):
    """A served call carries the caller's own fields, and no bookkeeping of ours."""
    body = chat("cloud-eu", temperature=0.5, metadata={"task_type": "summarize"})

    assert p.post("/v1/chat/completions", acme.key, body).status_code == 200

    [seen] = providers.a.journal
    assert seen.body.keys() <= {"model", "messages", "max_tokens", "temperature"}
    assert seen.body["model"] == "raw-eu-1"
    assert seen.body["temperature"] == 0.5


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "web_search_preview"},
        {"type": "mcp", "server_url": X, "server_label": "x"},
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "image_generation"},
    ],
    ids=lambda tool: tool["type"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_tool_that_a_third_party_runs_is_refused(p, providers, acme, path, tool):
    """Only tools that the caller runs itself: any other takes data to a place nobody granted."""
    body = chat("cloud-eu", tools=[pointed(tool, providers.x.url)])
    if path == "/v1/responses":
        body = {"model": "cloud-eu", "input": "x", "tools": body["tools"]}

    refused(p.post(path, acme.key, body), 400, "param_not_allowed")

    assert providers.seen() == NOTHING


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_link_is_not_fetched(p, providers, acme, dialect):
    """An image by address would be fetched by LiteLLM or the provider: it is refused."""
    path, body, model = DIALECTS[dialect]
    address = f"{providers.x.url}/x.png"
    parts = {
        "openai": {"type": "image_url", "image_url": {"url": address}},
        "anthropic": {"type": "image", "source": {"type": "url", "url": address}},
    }

    for part in parts.values():
        answer = p.post(path, acme.key, body(model, messages=[{"role": "user", "content": [part]}]))
        refused(answer, 400, "param_not_allowed")

    assert providers.seen() == NOTHING


STORED = [
    {"type": "item_reference", "id": "msg_of_another_tenant"},
    {"type": "image_generation_call", "id": "ig_of_another_tenant"},
    {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "file_id": "file_1"},
    },
    {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "image_url": X},
    },
    {"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]},
    {"role": "user", "content": [{"type": "input_file", "file_url": X}]},
    {"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": X}]},
]


@pytest.mark.parametrize("item", STORED, ids=lambda item: json.dumps(item)[:60])
def test_data_stored_at_a_provider_is_not_reached(p, providers, acme, item):
    """All tenants share the operator's account there: an id would open another tenant's data."""
    body = {"model": "cloud-eu", "input": [pointed(item, providers.x.url)]}

    answer = p.post("/v1/responses", acme.key, body)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in {"param_not_allowed", "invalid_request_error"}
    assert providers.seen() == NOTHING


def test_audio_stored_at_a_provider_is_not_reached(p, providers, acme):
    """An assistant's earlier audio answer is named by an id as well."""
    earlier = {"role": "assistant", "audio": {"id": "audio_of_another_tenant"}}
    body = chat("cloud-eu", messages=[earlier, {"role": "user", "content": "x"}])

    refused(p.post("/v1/chat/completions", acme.key, body), 400, "param_not_allowed")

    assert providers.seen() == NOTHING
