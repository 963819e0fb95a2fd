"""Times as an administrator types them: `30d`, `12h`, or ISO 8601 with an offset."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
DURATION = re.compile(r"([0-9]{1,9})([dhms])")
#: Later than any key should live, and still a time the database holds.
LATEST = datetime(9999, 1, 1, tzinfo=UTC)


def duration(text: str) -> timedelta:
    """Read `30d`, `12h`, `90m` or `45s`.

    Raises:
        ValueError: With what was expected instead.
    """
    match = DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a duration such as 30d, 12h, 90m or 45s, got {text!r}")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def later(now: datetime, wait: timedelta) -> datetime:
    """Return *now* plus *wait*, or `LATEST` if the calendar does not reach that far."""
    return now + wait if wait < LATEST - now else LATEST


def expiry(text: str, now: datetime) -> datetime:
    """Read a duration from *now*, or an ISO time with an offset, that lies in the future.

    Raises:
        ValueError: With what was expected instead.
    """
    moment = later(now, duration(text)) if DURATION.fullmatch(text) else _iso(text)
    if moment <= now:
        raise ValueError(f"expected a time in the future, got {text!r}; it is {now:%FT%TZ} now")
    if moment >= LATEST:
        raise ValueError(f"expected a time before the year 9999, got {text!r}")
    return moment


def _iso(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"expected a duration such as 30d, 12h, 90m or 45s, or a time such as"
            f" 2027-01-31T18:00:00+01:00, got {text!r}"
        ) from None
    if moment.utcoffset() is None:
        raise ValueError(
            f"expected a time with an offset, got {text!r}: write {moment.isoformat()}Z for UTC"
        )
    return moment
