"""Read one call from its path, headers and body, or say why it is malformed.

What comes out is all that the policies ever see of a call, and the body that may go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plugins.policy.grants import DataClass
from plugins.policy.identity import SECRET_START
from plugins.policy.refusal import Refusal
from plugins.policy.routes import CONTROL_FIELDS, Dialect, Route

MODEL_NAME_MAX_LENGTH = 256
MAX_DEPTH = 100
_METADATA_MAX = 16
_TASK_MAX_LENGTH = 256
_PRINTABLE = re.compile(r"[^A-Za-z0-9_.\[\]-]")

#: Tools the caller runs itself. Others make the provider (or LiteLLM) call a third party.
_OWN_TOOLS = frozenset({"function", "custom"})
_OWN_TOOL_FAMILIES = ("bash_", "text_editor_", "computer_", "memory_")
#: Fields of a message part that point at data held elsewhere under the operator's account.
_STORED_TYPES = frozenset({"item_reference", "image_generation_call"})
_DATA_OBJECTS = (*("source", "image_url", "file", "input_audio", "video_url", "content", "output"),)
_STORED_REFERENCES = ("file_id", "container_id", "server_url", "connector_id")
_LINKS = ("url", "image_url", "file_url", "video_url", "input_audio_url")


@dataclass(frozen=True, slots=True)
class Limits:
    """What an administrator may set under `wicketgate.defaults`."""

    max_body_bytes: int = 8_000_000
    remote_media: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the policies see it.

    Attributes:
        model: The public model name asked for; a non-empty text.

        output_cap: The output tokens the caller allows itself; None when it named no cap.
    """

    model: str
    stream: bool = False
    output_cap: int | None = None
    data_class: DataClass = DataClass.ANY
    task_type: str | None = None
    task_id: str | None = None


def read_call(
    route: Route, headers: Mapping[str, str], body: Any, limits: Limits
) -> tuple[Call, dict[str, Any]] | Refusal:
    """Return the call and the body to send on: the caller's, without its `metadata`.

    Args:
        headers: Names in lower case.

        body: The parsed JSON document.
    """
    if not isinstance(body, dict):
        return _malformed("The body must be a JSON object.")
    problem = (
        _check_fields(route, body)
        or _check_caps(route, body)
        or _check_metadata(body.get("metadata"))
        or _check_messages(body.get("messages"))
        or _check_content(route, body, limits)
    )
    if problem is not None:
        return problem
    data_class = _data_class(headers)
    if isinstance(data_class, Refusal):
        return data_class
    work = _named_work(headers, body.get("metadata") or {})
    if isinstance(work, Refusal):
        return work
    call = Call(
        model=body["model"],
        stream=body.get("stream") is True,
        output_cap=next((body[cap] for cap in _caps(route) if body.get(cap) is not None), None),
        data_class=data_class,
        task_type=work["task-type"],
        task_id=work["task-id"],
    )
    cleaned = {name: value for name, value in body.items() if name != "metadata"}
    if "store" in (route.fields or {}):
        # Left out, it would mean that the provider keeps the answer.
        cleaned["store"] = False
    return call, cleaned


def _caps(route: Route) -> tuple[str, ...]:
    return route.caps or ("max_tokens", "max_output_tokens")


def _check_fields(route: Route, body: Mapping[str, Any]) -> Refusal | None:
    checks = route.fields or {}
    for name in body:
        if name not in checks:
            return not_allowed(name)
    for name in route.required:
        if body.get(name) is None:
            return _malformed(f"The field '{name}' is missing.", name)
    for name, value in body.items():
        # An explicit null means "not set" to every client library.
        if value is not None and not checks[name](value):
            return _malformed(f"The field '{name}' has a value of the wrong kind.", name)
    if not 0 < len(body["model"]) <= MODEL_NAME_MAX_LENGTH:
        return _malformed("The field 'model' must name one model.", "model")
    return None


def _check_caps(route: Route, body: Mapping[str, Any]) -> Refusal | None:
    named = {body[cap] for cap in route.caps if body.get(cap) is not None}
    if len(named) > 1:
        names = " and ".join(f"'{cap}'" for cap in route.caps)
        return _malformed(f"{names} differ; send one of them.", route.caps[-1])
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
        return _malformed(f"'metadata' may have {_METADATA_MAX} entries.", "metadata")
    return None


def _check_messages(messages: Any) -> Refusal | None:
    """Refuse a message that no dialect knows; LiteLLM would fail over it without sending it."""
    for number, message in enumerate(messages or ()):
        place = f"messages[{number}]"
        if not isinstance(message.get("role"), str):
            return _malformed(f"'{place}.role' must be text.", "messages")
        content = message.get("content")
        if not isinstance(content, str | list | None):
            return _malformed(f"'{place}.content' must be text or a list of parts.", "messages")
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                return _malformed(f"Each part of '{place}.content' must have a type.", "messages")
            if part["type"] == "text" and not isinstance(part.get("text"), str):
                return _malformed(f"A text part of '{place}.content' has no text.", "messages")
        if not isinstance(message.get("tool_calls"), list | None):
            return _malformed(f"'{place}.tool_calls' must be a list.", "messages")
    return None


def _check_content(route: Route, body: Mapping[str, Any], limits: Limits) -> Refusal | None:
    for place, tool in _enumerated("tools", body.get("tools")):
        kind = tool.get("type", "custom" if route.dialect is Dialect.ANTHROPIC else None)
        if not _is_own_tool(kind):
            return not_allowed(
                f"{place}.type", "only tools that the caller runs itself are accepted"
            )
    for place, part in _parts(body):
        if part.get("type") in _STORED_TYPES or isinstance(part.get("audio"), dict):
            return not_allowed(f"{place}.type", "data must be sent in the call itself")
        for name in _STORED_REFERENCES:
            if part.get(name) is not None:
                return not_allowed(f"{place}.{name}", "data must be sent in the call itself")
        if not limits.remote_media and (link := _remote_link(part)) is not None:
            return not_allowed(f"{place}.{link}", "send the data inline, as a data: URL")
    return None


def _is_own_tool(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in _OWN_TOOLS or kind.startswith(_OWN_TOOL_FAMILIES))


def _enumerated(place: str, items: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(items, list):
        for number, item in enumerate(items):
            if isinstance(item, dict):
                yield f"{place}[{number}]", item


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every part of every message, and the objects that carry its data.

    Tool arguments (`input` of a `tool_use`, `arguments`) are the caller's own text and are
    not looked into.
    """
    waiting: list[tuple[str, dict[str, Any]]] = [
        entry
        for field in ("messages", "input", "system")
        for entry in _enumerated(field, body.get(field))
    ]
    while waiting:
        place, part = waiting.pop()
        yield place, part
        for name in ("content", "output"):
            waiting.extend(_enumerated(f"{place}.{name}", part.get(name)))
        waiting.extend(
            (f"{place}.{name}", part[name])
            for name in _DATA_OBJECTS
            if isinstance(part.get(name), dict)
        )


def _remote_link(part: Mapping[str, Any]) -> str | None:
    for name in (*_LINKS, "file_data"):
        value = part.get(name)
        if isinstance(value, str) and not value.startswith("data:") and ":" in value[:32]:
            return name
    return None


def _data_class(headers: Mapping[str, str]) -> DataClass | Refusal:
    named = headers.get("x-data-class")
    if named is None:
        return DataClass.ANY
    if named != DataClass.LOCAL_ONLY.value:
        return _malformed("The header 'x-data-class' may only be 'local-only'.", "x-data-class")
    return DataClass.LOCAL_ONLY


def _named_work(
    headers: Mapping[str, str], metadata: Mapping[str, Any]
) -> dict[str, str | None] | Refusal:
    """Return task type and task id; a header wins over the body."""
    work: dict[str, str | None] = {}
    for name in ("task-type", "task-id"):
        value = headers.get(f"x-{name}", metadata.get(name.replace("-", "_")))
        if value is not None and not 0 < len(value) <= _TASK_MAX_LENGTH:
            return _malformed(
                f"'x-{name}' must have 1 to {_TASK_MAX_LENGTH} characters.", f"x-{name}"
            )
        work[name] = value
    return work


def unreadable_text(document: Any) -> Refusal | None:
    """Refuse what cannot be stored or would exhaust a parser: U+0000, and deep nesting."""
    level = [document]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for value in level:
            if isinstance(value, str):
                if "\x00" in value:
                    return _malformed("Text must not contain the character U+0000.")
            elif isinstance(value, dict):
                deeper.extend(value)
                deeper.extend(value.values())
            elif isinstance(value, list):
                deeper.extend(value)
        if not deeper:
            return None
        level = deeper
    return _malformed(f"The body is nested more than {MAX_DEPTH} levels deep.")


def not_allowed(name: str, why: str = "it is not accepted by this gateway") -> Refusal:
    # A key that was sent as a name is not repeated.
    shown = "?" if SECRET_START in name else _PRINTABLE.sub("?", name)[:80]
    return Refusal("param_not_allowed", f"The field '{shown}' is refused: {why}.", param=shown)


def _malformed(message: str, param: str | None = None) -> Refusal:
    return Refusal("invalid_request_error", message, param=param)
