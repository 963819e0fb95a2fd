"""What is wrong with a configuration, and where."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN_LENGTH = 80

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong at one place of the file.

    Attributes:
        rule: What is expected there.

        got: What stands there, as text; "" where nothing does. Never a secret.

        line: Where the file cannot be parsed, and so has no places; None otherwise.
    """

    place: Place
    rule: str
    got: str = ""
    remedy: str = ""
    line: int | None = None


def dotted(place: Place) -> str:
    """Return `model_list[2].model_info.id` for its parts."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def shown(value: Any) -> str:
    """Return a value for people to read, as YAML has it: no whole section, no password of a URL."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = re.sub(r"(?<=//)[^/@\s]*@|[^/@\s'\"]*:[^/@\s]*@", "***@", repr(value))
    return text if len(text) <= SHOWN_LENGTH else f"{text[: SHOWN_LENGTH - 3]}..."


def unknown(place: Place, raw: Mapping[str, Any], known: Sequence[str]) -> Iterator[Flaw]:
    for name in raw:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean '{near[0]}'?" if near else f"known are: {', '.join(known)}"
            yield Flaw((*place, name), "unknown setting", name, remedy)
