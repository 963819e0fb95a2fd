"""What may stand inside messages and tools: allow-lists, kind by kind.

A model's input can make a provider, an engine or LiteLLM itself fetch an address, read a file
stored under the operator's account, or call a third party. So each object in it may have just
the fields named here, and each field just what is said of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Any

from plugins.policy.refusal import Refusal, malformed, not_allowed
from plugins.policy.routes import Dialect, Route

#: References between the parts of a JSON schema are expanded by some of LiteLLM's bridges; a
#: schema may come to so many values in all.
SCHEMA_MAX_VALUES = 20_000

_INLINE = "data must be sent in the call itself"
_OWN_TOOLS_ONLY = "only tools that the caller runs itself are accepted"


class Holds(Enum):
    """What a field may hold; null is "not set" everywhere."""

    OWN = auto()  # the caller's own data, not looked into
    TEXT = auto()
    LINK = auto()  # a `data:` URL; with remote media allowed also an http one
    BASE64 = auto()  # no address has no colon
    PARTS = auto()  # text, or a list of parts
    SCHEMA = auto()  # a JSON schema
    THOUGHTS = auto()  # a list of thinking parts


OWN, TEXT, LINK = Holds.OWN, Holds.TEXT, Holds.LINK
BASE64, PARTS, SCHEMA = Holds.BASE64, Holds.PARTS, Holds.SCHEMA

Shape = Mapping[str, "Holds | Shape | tuple[Holds, Shape]"]


def _own(*names: str) -> dict[str, Holds]:
    return dict.fromkeys(names, OWN)


_TEXT_PART: Shape = {"text": TEXT, **_own("cache_control", "annotations", "citations", "logprobs")}
_THINKING: dict[str, Shape] = {
    "thinking": _own("thinking", "signature", "cache_control"),
    "redacted_thinking": _own("data", "cache_control"),
}
_AUDIO: Shape = {"input_audio": {"data": BASE64, "format": OWN}, "cache_control": OWN}
_SOURCE: Shape = {"type": OWN, "media_type": OWN, "data": BASE64, "url": LINK}
_DOCUMENT: Shape = {**_SOURCE, "content": PARTS}

#: Parts of a message in Anthropic's dialect; LiteLLM takes them in OpenAI's too.
_ANTHROPIC_PARTS: dict[str, Shape] = {
    "text": _TEXT_PART,
    "image": {"source": _SOURCE, "cache_control": OWN},
    "document": {"source": _DOCUMENT, **_own("title", "context", "citations", "cache_control")},
    "search_result": {
        "content": PARTS,
        "source": TEXT,
        **_own("title", "citations", "cache_control"),
    },
    "tool_use": _own("id", "name", "input", "cache_control", "caller", "toolset_name"),
    "tool_result": {"content": PARTS, **_own("tool_use_id", "is_error", "cache_control")},
    **_THINKING,
}
_CHAT_PARTS: dict[str, Shape] = {
    **_ANTHROPIC_PARTS,
    "refusal": _own("refusal"),
    "image_url": {
        "image_url": (LINK, {"url": LINK, "detail": OWN, "format": OWN}),
        "cache_control": OWN,
    },
    "input_audio": _AUDIO,
    "file": {
        "file": {"file_data": LINK, **_own("filename", "format", "detail")},
        "cache_control": OWN,
    },
}
_RESPONSE_PARTS: dict[str, Shape] = {
    "input_text": _TEXT_PART,
    "output_text": _TEXT_PART,
    "text": _TEXT_PART,
    "summary_text": _TEXT_PART,
    "reasoning_text": _TEXT_PART,
    "refusal": _own("refusal"),
    "input_image": {"image_url": LINK, "detail": OWN},
    "input_file": {"file_data": LINK, "file_url": LINK, **_own("filename", "detail")},
    "input_audio": _AUDIO,
}
_CHAT_MESSAGE: Shape = {
    "role": TEXT,
    "content": PARTS,
    **_own("name", "tool_calls", "tool_call_id", "function_call", "refusal", "annotations"),
    "thinking_blocks": Holds.THOUGHTS,
    **_own("reasoning", "reasoning_content", "provider_specific_fields"),
    **_own("cache_control", "prefix"),
}
_ITEM_STATE = _own("id", "status", "phase")
#: Items of a `/v1/responses` input. References to stored items are not among them.
_ITEMS: dict[str, Shape] = {
    "message": {"role": TEXT, "content": PARTS, **_ITEM_STATE},
    "function_call": {
        **_own("call_id", "name", "arguments", "namespace", "caller", "async"),
        **_ITEM_STATE,
    },
    "function_call_output": {"call_id": OWN, "output": PARTS, **_ITEM_STATE},
    "custom_tool_call": {**_own("call_id", "name", "input", "namespace"), **_ITEM_STATE},
    "custom_tool_call_output": {"call_id": OWN, "output": PARTS, **_ITEM_STATE},
    "reasoning": {**_own("summary", "content", "encrypted_content"), **_ITEM_STATE},
}
#: What an item must bring itself; without it the provider would look the item up by its id.
_BRINGS = {"message": "content", "reasoning": "encrypted_content"}

_FUNCTION: Shape = {"parameters": SCHEMA, **_own("name", "description", "strict")}
_CHAT_TOOLS: dict[str, Shape] = {
    "function": {"function": {**_FUNCTION, "cache_control": OWN}, "cache_control": OWN},
    "custom": {"custom": _own("name", "description", "format"), "cache_control": OWN},
}
_RESPONSE_TOOLS: dict[str, Shape] = {
    "function": {**_FUNCTION, "output_schema": SCHEMA, "defer_loading": OWN},
    "custom": _own("name", "description", "format"),
}
_ANTHROPIC_TOOL: Shape = {
    "input_schema": SCHEMA,
    **_own("name", "description", "strict", "cache_control", "input_examples"),
    **_own("eager_input_streaming", "max_characters", "defer_loading", "allowed_callers"),
    **_own("display_width_px", "display_height_px", "display_number", "enable_zoom"),
}
#: Anthropic's tools that the caller runs; the rest of the name is a date.
_ANTHROPIC_FAMILIES = ("bash_", "text_editor_", "computer_", "memory_")

_PARTS = {
    "/v1/chat/completions": _CHAT_PARTS,
    "/v1/messages": _ANTHROPIC_PARTS,
    "/v1/responses": _RESPONSE_PARTS,
}


def check_content(route: Route, body: Mapping[str, Any], *, remote_media: bool) -> Refusal | None:
    """Return what in the messages and tools of a body is not accepted, or None."""
    look = _Look(_PARTS.get(route.path, {}), remote_media)
    for problem in _problems(look, route, body):
        if problem is not None:
            return problem
    return None


def _problems(look: _Look, route: Route, body: Mapping[str, Any]) -> Iterator[Refusal | None]:
    for place, message in _objects("messages", body.get("messages")):
        if not isinstance(message.get("role"), str):
            yield malformed(f"'{place}.role' must be text.", "messages")
        if not isinstance(message.get("tool_calls"), list | None):
            yield malformed(f"'{place}.tool_calls' must be a list.", "messages")
        yield look.shape(place, message, _CHAT_MESSAGE)
    for place, item in _objects("input", body.get("input")):
        yield _item(look, place, item)
    yield look.value("system", body.get("system"), PARTS)
    for place, tool in _objects("tools", body.get("tools")):
        yield _tool(look, route, place, tool)
    for place, function in _objects("functions", body.get("functions")):
        yield look.shape(place, function, _FUNCTION)
    yield from _formats(look, body)


def _formats(look: _Look, body: Mapping[str, Any]) -> Iterator[Refusal | None]:
    """The places where an answer's form is asked for by a schema."""
    wanted = body.get("response_format")
    if isinstance(wanted, dict):
        yield look.value("response_format", wanted.get("json_schema"), SCHEMA)
        yield look.value("response_format", wanted.get("schema"), SCHEMA)
        yield look.value("response_format", wanted.get("response_schema"), SCHEMA)
    for field in ("text", "output_config"):
        asked = body.get(field)
        if isinstance(asked, dict) and isinstance(asked.get("format"), dict):
            yield look.value(field, asked["format"].get("schema"), SCHEMA)


def _item(look: _Look, place: str, item: Mapping[str, Any]) -> Refusal | None:
    kind = item.get("type", "message")
    shape = _ITEMS.get(kind) if isinstance(kind, str) else None
    if shape is None:
        return not_allowed(f"{place}.type", _INLINE)
    needed = _BRINGS.get(str(kind))
    stored = kind == "message" or item.get("id") is not None
    if needed is not None and stored and item.get(needed) is None:
        return not_allowed(f"{place}.id", _INLINE)
    return look.shape(place, item, {**shape, "type": OWN})


def _tool(look: _Look, route: Route, place: str, tool: Mapping[str, Any]) -> Refusal | None:
    kind = tool.get("type")
    shape: Shape | None = None
    if route.dialect is Dialect.ANTHROPIC:
        if tool.get("name") == "web_search":  # some bridges make a search of their own of it
            return not_allowed(f"{place}.name", _OWN_TOOLS_ONLY)
        if kind in (None, "custom") or str(kind).startswith(_ANTHROPIC_FAMILIES):
            shape = _ANTHROPIC_TOOL
    elif isinstance(kind, str):
        known = _RESPONSE_TOOLS if route.path == "/v1/responses" else _CHAT_TOOLS
        shape = known.get(kind)
    if shape is None:
        return not_allowed(f"{place}.type", _OWN_TOOLS_ONLY)
    return look.shape(place, tool, {**shape, "type": OWN})


def _objects(place: str, items: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(items, list):
        for number, item in enumerate(items):
            if isinstance(item, dict):
                yield f"{place}[{number}]", item


class _Look:
    """Compares values with what their fields may hold."""

    def __init__(self, parts: Mapping[str, Shape], remote_media: bool) -> None:
        self._parts = parts
        self._links = ("data:", "https://", "http://") if remote_media else ("data:",)

    def shape(self, place: str, found: Mapping[str, Any], shape: Shape) -> Refusal | None:
        for name, value in found.items():
            holds = shape.get(name)
            if value is None or (holds is None and value == []):
                continue
            if holds is None:
                return not_allowed(f"{place}.{name}")
            problem = self.value(f"{place}.{name}", value, holds)
            if problem is not None:
                return problem
        return None

    def value(
        self, place: str, value: Any, holds: Holds | Shape | tuple[Holds, Shape]
    ) -> Refusal | None:
        if value is None or holds is OWN:
            return None
        if isinstance(holds, tuple):
            holds = holds[1] if isinstance(value, dict) else holds[0]
        if isinstance(holds, Mapping):
            if not isinstance(value, dict):
                return malformed(f"'{place}' must be an object.")
            if holds is _SOURCE or holds is _DOCUMENT:
                return self._source(place, value, holds)
            return self.shape(place, value, holds)
        if holds is PARTS:
            return self._part_list(place, value, self._parts)
        if holds is Holds.THOUGHTS:
            return self._part_list(place, value, _THINKING)
        if holds is SCHEMA:
            return check_schema(place, value)
        if not isinstance(value, str):
            return malformed(f"'{place}' must be text.")
        if holds is LINK and not value.startswith(self._links):
            return not_allowed(place, "send the data inline, as a data: URL")
        if holds is BASE64 and ":" in value:
            return not_allowed(place, "send the data itself, in base64")
        return None

    def _source(self, place: str, source: Mapping[str, Any], shape: Shape) -> Refusal | None:
        if source.get("type") == "text":  # plain text, which may hold any character
            shape = {**shape, "data": TEXT}
        return self.shape(place, source, shape)

    def _part_list(self, place: str, value: Any, parts: Mapping[str, Shape]) -> Refusal | None:
        if isinstance(value, str):
            return None
        if not isinstance(value, list):
            return malformed(f"'{place}' must be text or a list of parts.")
        for number, part in enumerate(value):
            here = f"{place}[{number}]"
            kind = part.get("type") if isinstance(part, dict) else None
            if not isinstance(kind, str):
                return malformed(f"'{here}' must be a part with a type.")
            shape = parts.get(kind)
            if shape is None:
                return not_allowed(f"{here}.type", "there is no such part here")
            if "text" in shape and not isinstance(part.get("text"), str):
                return malformed(f"'{here}.text' must be text.")
            problem = self.shape(here, part, {**shape, "type": OWN})
            if problem is not None:
                return problem
        return None


def check_schema(place: str, schema: Any) -> Refusal | None:
    """Refuse a schema that points outside itself, in circles, or to more than it may come to."""
    if not isinstance(schema, dict):
        return malformed(f"'{place}' must be an object.")
    try:
        _Expansion(schema).follow(schema, frozenset())
    except ValueError as error:
        return not_allowed(place, str(error))
    except RecursionError:
        return not_allowed(place, "its references lead too deep")
    return None


class _Expansion:
    """Walks a schema with every reference put in place, and stops when that is too much."""

    def __init__(self, schema: Any) -> None:
        self._definitions = _definitions(schema)
        self._values = 0

    def follow(self, value: Any, inside: frozenset[str]) -> None:
        """Count *value* and all it comes to.

        Args:
            inside: The definitions on the way here; one that holds itself, as trees do, is
                followed once.
        """
        self._values += 1
        if self._values > SCHEMA_MAX_VALUES:
            raise ValueError(f"the schema comes to more than {SCHEMA_MAX_VALUES} values")
        if isinstance(value, dict):
            self._reference(value.get("$ref"), inside)
        members: Iterable[Any] = ()
        if isinstance(value, dict):
            members = value.values()
        elif isinstance(value, list):
            members = value
        for member in members:
            self.follow(member, inside)

    def _reference(self, reference: Any, inside: frozenset[str]) -> None:
        if reference is None:
            return
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ValueError("a schema may refer only to parts of itself")
        name = reference.rpartition("/")[2]
        if name in self._definitions and name not in inside:
            self.follow(self._definitions[name], inside | {name})


def _definitions(value: Any) -> dict[str, Any]:
    """Return every `$defs` and `definitions` entry in *value*, by its last name."""
    found: dict[str, Any] = {}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            for place in ("$defs", "definitions"):
                named = item.get(place)
                for name, definition in named.items() if isinstance(named, dict) else ():
                    if found.setdefault(name, definition) != definition:
                        raise ValueError("two definitions of one name")
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return found
