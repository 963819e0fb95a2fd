"""When a budget's window begins and ends, in the tenant's own time zone.

The database decides (`migrations/functions/windows_v1.sql`); this is the same rule as plain
code, and a test holds one to the other.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo


def start(kind: str, moment: datetime, zone: str, since: datetime) -> datetime:
    """Return the first moment, in UTC, of the window that holds *moment*.

    Args:
        kind: `day`, `week` (from Monday), `month` or `total`.

        since: When the budget was made; a `total` window begins there.
    """
    if kind == "total":
        return since
    return _midnight(_first_day(kind, moment, zone), zone)


def end(kind: str, moment: datetime, zone: str) -> datetime | None:
    """Return the first moment, in UTC, after that window; None for one that never ends."""
    if kind == "total":
        return None
    first = _first_day(kind, moment, zone)
    if kind == "month":
        following = (first + timedelta(days=31)).replace(day=1)
    else:
        following = first + timedelta(days=7 if kind == "week" else 1)
    return _midnight(following, zone)


def limit_at(
    base: Decimal, raised: Decimal | None, until: datetime | None, moment: datetime
) -> Decimal:
    """Return a budget's limit at *moment*: a raise counts until it ends."""
    if raised is not None and until is not None and moment < until:
        return raised
    return base


def _first_day(kind: str, moment: datetime, zone: str) -> date:
    day = moment.astimezone(ZoneInfo(zone)).date()
    if kind == "month":
        return day.replace(day=1)
    if kind == "week":
        return day - timedelta(days=day.weekday())
    if kind == "day":
        return day
    raise ValueError(f"unknown window kind: {kind!r}")


def _midnight(day: date, zone: str) -> datetime:
    """Return the moment *day* begins: the earlier of two midnights, or the end of a skipped one."""
    return datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)
