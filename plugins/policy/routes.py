"""The paths that are served, and the body fields and headers each of them accepts.

Everything here is an allow-list: what is not named is refused (paths, body fields) or left
behind (headers). A field gets in only if it cannot choose a destination, a credential, a
model, a price or the bookkeeping of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Dialect(StrEnum):
    """Whose error shape a path speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Route:
    """One governed path.

    Attributes:
        path: The path LiteLLM serves it under.

        fields: Body field -> the check its value must pass; empty for a GET.

        required: Fields without which the call is malformed.

        caps: The fields that bound the output; two of them must not differ.
    """

    path: str
    dialect: Dialect = Dialect.OPENAI
    fields: dict[str, Check] | None = None
    required: tuple[str, ...] = ()
    caps: tuple[str, ...] = ()


Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _short_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 512


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 1_000_000_000


def _few(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 128


def _index(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 1_000_000_000


def _whole(value: Any) -> bool:
    return type(value) is int


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _tokens(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(_index(item) for item in value)


def _input(value: Any) -> bool:
    """Text, several texts, token ids, or several lists of token ids."""
    if isinstance(value, list):
        return value != [] and (_texts(value) or _tokens(value) or all(map(_tokens, value)))
    return isinstance(value, str)


def _either(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def _some(check: Check) -> Check:
    """A list that passes *check* and is not empty."""
    return lambda value: check(value) and value != []


def _choice(value: Any) -> bool:
    """A tool choice in either dialect: what there is of a type and a name is text."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), str | None) for name in ("type", "name")
    )


def _thinking(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and (value.get("budget_tokens") is None or _count(value["budget_tokens"]))
    )


#: Sampling fields that every text route of the OpenAI family shares, with those that local
#: engines (llama.cpp, vLLM, Ollama) add to it.
_SAMPLING: dict[str, Check] = {
    "temperature": _number,
    "top_p": _number,
    "top_k": _whole,
    "min_p": _number,
    "typical_p": _number,
    "n": _few,
    "seed": _whole,
    "stop": _either(_text, _texts),
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "repetition_penalty": _number,
    "repeat_penalty": _number,
    "logit_bias": _mapping,
    "stream": _flag,
    "stream_options": _mapping,
    "user": _short_text,
    "metadata": _mapping,
    "max_tokens": _count,
    "model": _text,
}

_CHAT: dict[str, Check] = {
    **_SAMPLING,
    "messages": _some(_mappings),
    "max_completion_tokens": _count,
    "logprobs": _flag,
    "top_logprobs": _index,
    "response_format": _mapping,
    "tools": _mappings,
    "tool_choice": _either(_short_text, _choice),
    "parallel_tool_calls": _flag,
    "functions": _mappings,
    "function_call": _either(_short_text, _mapping),
    "reasoning_effort": _short_text,
    "thinking": _thinking,
    "verbosity": _short_text,
    "chat_template_kwargs": _mapping,
    "grammar": _text,
    "safety_identifier": _short_text,
    "prompt_cache_key": _short_text,
}

_COMPLETIONS: dict[str, Check] = {
    **_SAMPLING,
    "prompt": _input,
    "suffix": _text,
    "best_of": _few,
    "echo": _flag,
    "logprobs": _index,
}

_EMBEDDINGS: dict[str, Check] = {
    "model": _text,
    "input": _input,
    "encoding_format": _short_text,
    "dimensions": _count,
    "user": _short_text,
    "metadata": _mapping,
}

_RESPONSES: dict[str, Check] = {
    "model": _text,
    "input": _either(_text, _some(_mappings)),
    "instructions": _text,
    "max_output_tokens": _count,
    "temperature": _number,
    "top_p": _number,
    "top_logprobs": _index,
    "stream": _flag,
    "stream_options": _mapping,
    "tools": _mappings,
    "tool_choice": _either(_short_text, _choice),
    "parallel_tool_calls": _flag,
    "text": _mapping,
    "reasoning": _mapping,
    "truncation": _short_text,
    "include": _texts,
    # Only `false`: what a provider stores outlives the grant it was sent under.
    "store": lambda value: value is False,
    "user": _short_text,
    "safety_identifier": _short_text,
    "prompt_cache_key": _short_text,
    "metadata": _mapping,
}

_MESSAGES: dict[str, Check] = {
    "model": _text,
    "messages": _some(_mappings),
    "max_tokens": _count,
    "system": _either(_text, _mappings),
    "temperature": _number,
    "top_p": _number,
    "top_k": _whole,
    "stop_sequences": _texts,
    "stream": _flag,
    "tools": _mappings,
    "tool_choice": _choice,
    "thinking": _thinking,
    "output_config": _mapping,
    "metadata": _mapping,
}

_POSTS = (
    Route(
        "/v1/chat/completions",
        fields=_CHAT,
        required=("model", "messages"),
        caps=("max_tokens", "max_completion_tokens"),
    ),
    Route("/v1/completions", fields=_COMPLETIONS, required=("model", "prompt")),
    Route("/v1/embeddings", fields=_EMBEDDINGS, required=("model", "input")),
    Route("/v1/responses", fields=_RESPONSES, required=("model", "input")),
    Route(
        "/v1/messages",
        dialect=Dialect.ANTHROPIC,
        fields=_MESSAGES,
        required=("model", "messages", "max_tokens"),
    ),
)

MODELS = Route("/v1/models")
#: A key's own standing; answered by the gate itself.
ME = Route("/v1/me")

#: (method, path) -> route; each path is served with and without `/v1`.
GOVERNED: dict[tuple[str, str], Route] = {
    (method, path): route
    for method, routes in (("POST", _POSTS), ("GET", (MODELS, ME)))
    for route in routes
    for path in (route.path, route.path.removeprefix("/v1"))
}

LIVENESS = frozenset({"/health/liveness", "/health/liveliness"})
READINESS = "/health/readiness"

#: Headers that reach LiteLLM. The rest is dropped: none of LiteLLM's own `x-litellm-*`
#: controls, no cookie, no forwarding header, and not the key itself.
FORWARDED_HEADERS = frozenset(
    {"host", "content-type", "user-agent", "accept", "traceparent", "tracestate"}
)
PREFLIGHT_HEADERS = frozenset(
    {"host", "origin", "access-control-request-method", "access-control-request-headers"}
)
FORWARDED_ANTHROPIC_HEADERS = FORWARDED_HEADERS | {"anthropic-version", "anthropic-beta"}

#: Names that steer LiteLLM or a provider when they appear as body fields. The allow-lists
#: above already keep them out at the top level; in `metadata`, whose names are the caller's
#: to choose, these are refused by name.
CONTROL_FIELDS = frozenset(
    """
    api_base base_url api_key api_version organization custom_llm_provider model_info model_list
    model_group litellm_params litellm_metadata litellm_credential_name extra_body extra_headers
    headers fallbacks context_window_fallbacks content_policy_fallbacks router_settings_override
    user_config num_retries max_retries timeout request_timeout stream_timeout mock_response
    mock_timeout mock_testing_fallbacks no-log no_log cache caching tags guardrails prompt_id
    prompt_version prompt_variables callbacks success_callback failure_callback
    input_cost_per_token output_cost_per_token response_cost base_model aws_region_name
    aws_role_name vertex_location vertex_project vertex_credentials region_name ssl_verify
    specific_deployment disable_fallbacks user_api_key user_api_key_auth spend_logs_metadata
    hidden_params allowed_model_region
    """.split()
)
