"""Read one call from its path, headers and body, or say why it is malformed.

What comes out is all that the policies ever see of a call, and the body that may go on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from plugins.policy.content import check_content
from plugins.policy.grants import DataClass
from plugins.policy.refusal import Refusal, malformed, not_allowed
from plugins.policy.routes import CONTROL_FIELDS, Route

MODEL_NAME_MAX_LENGTH = 256
MAX_DEPTH = 100
#: A body may hold so many values: every one costs each program it passes through an object.
MAX_VALUES = 100_000
_METADATA_MAX = 16
_TASK_MAX_LENGTH = 256
_ECHO = "provider_specific_fields"
#: Possessive, and the end optional: an unfinished string must not be looked at twice.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an administrator may set under `wicketgate.defaults`."""

    max_body_bytes: int = 8_000_000
    remote_media: bool = False
    min_output_tokens: int = 16
    max_attempts: int = 4


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the policies see it.

    Attributes:
        model: The public model name asked for; a non-empty text.

        output_cap: The output tokens the caller allows itself; None when it named no cap.

        outputs: How many answers are asked for, each of which may be as long as the cap.

        generates: False for embeddings, which have no output.

        reasoning_budget: Tokens the caller sets aside for thinking, which the cap must exceed.

        writes_cache: Whether the caller asks for prompt parts to be cached, at their own price.

        task_outcome: `finished` or `failed`, when the caller says that this ends its task.

        max_cost: US dollars this call may cost over all its attempts; None: it does not say.
    """

    model: str
    stream: bool = False
    output_cap: int | None = None
    data_class: DataClass = DataClass.ANY
    task_type: str | None = None
    task_id: str | None = None
    outputs: int = 1
    generates: bool = True
    reasoning_budget: int = 0
    writes_cache: bool = False
    max_cost: Decimal | None = None
    task_outcome: str | None = None


def read_call(
    route: Route, headers: Mapping[str, str], body: Any, limits: Limits
) -> tuple[Call, dict[str, Any]] | Refusal:
    """Return the call and the body to send on.

    Args:
        headers: Names in lower case.

        body: The parsed JSON document.
    """
    if not isinstance(body, dict):
        return malformed("The body must be a JSON object.")
    problem = (
        _check_fields(route, body)
        or _check_caps(route, body)
        or _check_metadata(body.get("metadata"))
        or check_content(route, body, remote_media=limits.remote_media)
    )
    if problem is not None:
        return problem
    data_class = _data_class(headers)
    if isinstance(data_class, Refusal):
        return data_class
    work = _named_work(headers, body.get("metadata") or {})
    if isinstance(work, Refusal):
        return work
    max_cost = _max_cost(headers.get("x-max-cost-usd"))
    if isinstance(max_cost, Refusal):
        return max_cost
    outcome = headers.get("x-task-outcome")
    if outcome not in (None, "finished", "failed"):
        return malformed(
            "The header 'x-task-outcome' may be 'finished' or 'failed'.", "x-task-outcome"
        )
    thinking = body.get("thinking") or {}
    call = Call(
        model=body["model"],
        stream=body.get("stream") is True,
        output_cap=next((body[cap] for cap in _caps(route) if body.get(cap) is not None), None),
        data_class=data_class,
        task_type=work["task-type"],
        task_id=work["task-id"],
        outputs=_outputs(body),
        generates=route.path != "/v1/embeddings",
        reasoning_budget=thinking.get("budget_tokens") or 0,
        writes_cache="cache_control" in repr(body.get("messages")) + repr(body.get("system")),
        max_cost=max_cost,
        task_outcome=outcome,
    )
    return call, _to_send_on(route, body)


def _outputs(body: Mapping[str, Any]) -> int:
    """Return how many answers may be generated: for each prompt `n`, or `best_of` if more."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    prompts = len(prompt) if several and isinstance(prompt, list) else 1
    return prompts * max(body.get("n") or 1, body.get("best_of") or 1)


def _max_cost(text: str | None) -> Decimal | Refusal | None:
    """Read `x-max-cost-usd`: plain digits, so that what is meant cannot be mistaken."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}(\.\d{1,18})?", text.strip(), re.ASCII):
        return malformed(
            "The header 'x-max-cost-usd' must be US dollars, as in 0.05.", "x-max-cost-usd"
        )
    return Decimal(text.strip())


def _to_send_on(route: Route, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body as it goes further: the caller's, less what is ours to keep or decide."""
    cleaned = {name: value for name, value in body.items() if name != "metadata"}
    if "messages" in cleaned:
        cleaned["messages"] = [_own_words(message) for message in cleaned["messages"]]
    options = cleaned.get("stream_options")
    if options is not None and options.get("include_usage") is False:
        # Not to be shown usage is the caller's wish, not to be told it by the provider is not.
        kept = {name: value for name, value in options.items() if name != "include_usage"}
        cleaned["stream_options"] = kept or None
    if "store" in (route.fields or {}):
        # Left out, it would mean that the provider keeps the answer.
        cleaned["store"] = False
    return cleaned


def _caps(route: Route) -> tuple[str, ...]:
    return route.caps or ("max_tokens", "max_output_tokens")


def _check_fields(route: Route, body: Mapping[str, Any]) -> Refusal | None:
    checks = route.fields or {}
    for name in body:
        if name not in checks:
            return not_allowed(name)
    for name in route.required:
        if body.get(name) is None:
            return malformed(f"The field '{name}' is missing.", name)
    for name, value in body.items():
        # An explicit null means "not set" to every client library.
        if value is not None and not checks[name](value):
            return malformed(f"The field '{name}' has a value of the wrong kind.", name)
    if not 0 < len(body["model"]) <= MODEL_NAME_MAX_LENGTH:
        return malformed("The field 'model' must name one model.", "model")
    return None


def _check_caps(route: Route, body: Mapping[str, Any]) -> Refusal | None:
    named = {body[cap] for cap in route.caps if body.get(cap) is not None}
    if len(named) > 1:
        names = " and ".join(f"'{cap}'" for cap in route.caps)
        return malformed(f"{names} differ; send one of them.", route.caps[-1])
    return None


def _check_metadata(metadata: Mapping[str, Any] | None) -> Refusal | None:
    if not metadata:
        return None
    for name, value in metadata.items():
        if name in CONTROL_FIELDS or name.startswith("user_api_key"):
            return not_allowed(f"metadata.{name}")
        if value is not None and not isinstance(value, str):
            return not_allowed(f"metadata.{name}")
    if len(metadata) > _METADATA_MAX:
        return malformed(f"'metadata' may have {_METADATA_MAX} entries.", "metadata")
    return None


def _data_class(headers: Mapping[str, str]) -> DataClass | Refusal:
    named = headers.get("x-data-class")
    if named is None:
        return DataClass.ANY
    if named != DataClass.LOCAL_ONLY.value:
        return malformed("The header 'x-data-class' may only be 'local-only'.", "x-data-class")
    return DataClass.LOCAL_ONLY


def _named_work(
    headers: Mapping[str, str], metadata: Mapping[str, Any]
) -> dict[str, str | None] | Refusal:
    """Return task type and task id; a header wins over the body."""
    work: dict[str, str | None] = {}
    for name in ("task-type", "task-id"):
        value = headers.get(f"x-{name}", metadata.get(name.replace("-", "_")))
        if value is not None and not 0 < len(value) <= _TASK_MAX_LENGTH:
            return malformed(
                f"'x-{name}' must have 1 to {_TASK_MAX_LENGTH} characters.", f"x-{name}"
            )
        work[name] = value
    return work


def _own_words(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without what LiteLLM put into an answer that is now echoed.

    LiteLLM would take it for a provider's blocks and unpack it into the next call.
    """
    kept = {name: value for name, value in message.items() if name != _ECHO}
    calls = kept.get("tool_calls")
    if isinstance(calls, list):
        kept["tool_calls"] = [
            {name: _without_echo(value) for name, value in call.items() if name != _ECHO}
            if isinstance(call, dict)
            else call
            for call in calls
        ]
    return kept


def _without_echo(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if name != _ECHO}
    return value


def too_many_values(body: bytes) -> Refusal | None:
    """Refuse a JSON text of more than `MAX_VALUES` values, before it is parsed."""
    if _marks(body) <= MAX_VALUES or _marks(_STRING.sub(b"", body)) <= MAX_VALUES:
        return None
    return malformed(f"The body holds more than {MAX_VALUES} values.")


def _marks(text: bytes) -> int:
    """Count what begins a value, or follows one; those inside of strings too."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def unreadable_text(document: Any) -> Refusal | None:
    """Refuse what cannot be stored or would exhaust a parser: U+0000, and deep nesting."""
    level = [document]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for value in level:
            if isinstance(value, str):
                if "\x00" in value:
                    return malformed("Text must not contain the character U+0000.")
            elif isinstance(value, dict):
                deeper.extend(value)
                deeper.extend(value.values())
            elif isinstance(value, list):
                deeper.extend(value)
        if not deeper:
            return None
        level = deeper
    return malformed(f"The body is nested more than {MAX_DEPTH} levels deep.")
