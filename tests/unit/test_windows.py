"""Windows in a tenant's own time zone; `tests/ledger/test_holds_agree.py` holds the SQL to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from plugins.policy import windows

BEFORE = datetime(2026, 1, 1, tzinfo=UTC)

#: kind, zone, moment, first moment, first moment after (UTC)
TABLE = {
    "a day in UTC": ("day", "UTC", "2026-07-15T12:00Z", "2026-07-15T00:00Z", "2026-07-16T00:00Z"),
    "its first instant belongs to a day": (
        *("day", "UTC", "2026-07-15T00:00Z", "2026-07-15T00:00Z", "2026-07-16T00:00Z"),
    ),
    "a day of 23 hours": (
        *("day", "Europe/Berlin", "2026-03-29T12:00Z", "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
    ),
    "a day of 25 hours": (
        *("day", "Europe/Berlin", "2026-10-25T12:00Z", "2026-10-24T22:00Z", "2026-10-25T23:00Z"),
    ),
    "a day of 24 and a half hours": (
        "day", "Australia/Lord_Howe", "2026-04-04T20:00Z",
        "2026-04-04T13:00Z", "2026-04-05T13:30Z",
    ),
    "a day without a midnight": (
        "day", "America/Sao_Paulo", "2018-11-04T12:00Z",
        "2018-11-04T03:00Z", "2018-11-05T02:00Z",
    ),
    "a day with two midnights begins at the first": (
        *("day", "Atlantic/Azores", "2026-10-25T00:30Z", "2026-10-25T00:00Z", "2026-10-26T01:00Z"),
    ),
    "a week begins on Monday": (
        *("week", "Asia/Kathmandu", "2026-07-19T18:00Z", "2026-07-12T18:15Z", "2026-07-19T18:15Z"),
    ),
    "a month in Tokyo": (
        *("month", "Asia/Tokyo", "2026-07-31T15:00Z", "2026-07-31T15:00Z", "2026-08-31T15:00Z"),
    ),
    "a month over a change of clocks": (
        "month", "America/New_York", "2026-03-20T00:00Z",
        "2026-03-01T05:00Z", "2026-04-01T04:00Z",
    ),
    "a leap February": (
        *("month", "UTC", "2028-02-10T00:00Z", "2028-02-01T00:00Z", "2028-03-01T00:00Z"),
    ),
    "December ends with its year": (
        *("month", "UTC", "2026-12-31T23:59Z", "2026-12-01T00:00Z", "2027-01-01T00:00Z"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "zone", "at", "first", "after"), TABLE.values(), ids=TABLE)
def test_a_window_begins_and_ends(kind: str, zone: str, at: str, first: str, after: str) -> None:
    """At local midnight, whatever the clocks do."""
    moment = datetime.fromisoformat(at)

    assert windows.start(kind, moment, zone, BEFORE) == datetime.fromisoformat(first)
    assert windows.end(kind, moment, zone) == datetime.fromisoformat(after)


def test_a_total_window_begins_with_its_budget_and_has_no_end() -> None:
    """It never opens again."""
    moment = datetime(2026, 7, 15, tzinfo=UTC)

    assert windows.start("total", moment, "UTC", BEFORE) == BEFORE
    assert windows.end("total", moment, "UTC") is None


def test_an_unknown_kind_is_an_error() -> None:
    """Never taken for a day."""
    with pytest.raises(ValueError, match="'year'"):
        windows.end("year", BEFORE, "UTC")


@pytest.mark.parametrize(("after", "limit"), [(-1, 9), (0, 5), (1, 5)])
def test_a_raise_counts_until_it_ends(after: int, limit: int) -> None:
    """At its end it is over."""
    moment = BEFORE + timedelta(seconds=after)

    assert windows.limit_at(Decimal(5), Decimal(9), BEFORE, moment) == limit
    assert windows.limit_at(Decimal(5), None, None, moment) == 5
