"""What the commands that report money do: spend, prices, unit-cost."""

from __future__ import annotations

import zoneinfo
from argparse import Namespace
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from plugins.admin.commands import (
    Data,
    Desk,
    RefusedError,
    check_zone,
    shown_time,
    tenant_asked_for,
)
from plugins.ledger import prices, spend
from plugins.ledger.prices import PriceRow
from plugins.ledger.spend import Range, SpendRow
from plugins.policy.money import plain
from plugins.policy.unit_cost import usd_per_million

#: Days without spend are shown in ranges up to this long.
FILLED_DAYS = 400
SIX_PLACES = Decimal("0.000001")
CENT = Decimal("0.01")


def spend_by(desk: Desk, args: Namespace) -> list[Data]:
    tenant = tenant_asked_for(desk, args)
    if args.zone is not None:
        check_zone("--zone", args.zone)
    zone = args.zone or (tenant.zone if tenant else "UTC")
    first, last = _date("--from", args.first), _date("--to", args.last)
    if first and last and last < first:
        raise RefusedError(f"--to {last} lies before --from {first}")
    within = Range(
        tenant_id=tenant.id if tenant else None,
        since=None if first is None else _midnight(first, zone),
        until=None if last is None else _midnight(last + timedelta(days=1), zone),
        zone=zone,
    )
    found = spend.spend(desk.conn, args.by, within)
    unpriced = sum(row.unpriced for row in found)
    if unpriced:
        desk.say(f"{unpriced} attempts have no price: their cost is not in these sums")
    rows = [_spend(args.by, row) for row in found]
    return _every_day(rows, first, last) if args.by == "day" else rows


def _date(option: str, text: str | None) -> date | None:
    if text is None:
        return None
    try:
        found = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        raise RefusedError(f"{option}: expected a date such as 2027-01-31, got {text!r}") from None
    if not 2000 <= found.year < 9999:
        raise RefusedError(f"{option}: expected a year from 2000 to 9998, got {text!r}")
    return found


def _midnight(day: date, zone: str) -> datetime:
    """Return the first moment of *day*, also where its midnight is skipped."""
    return datetime.combine(day, time(), zoneinfo.ZoneInfo(zone)).astimezone(UTC)


def _every_day(rows: list[Data], first: date | None, last: date | None) -> list[Data]:
    """Put a row of zeros in for each day of a range of dates on which nothing was called."""
    if first is None or last is None or (last - first).days >= FILLED_DAYS:
        return rows
    by_day = {row["day"]: row for row in rows}
    days = [str(first + timedelta(days=n)) for n in range((last - first).days + 1)]
    nothing = SpendRow(None, None, 0, 0, 0, 0, 0, Decimal(0), 0)
    return [by_day.get(day) or {**_spend("day", nothing), "day": day} for day in days]


def _spend(by: str, row: SpendRow) -> Data:
    sums: Data = {
        "requests": int(row.requests),
        "attempts": int(row.attempts),
        "prompt_tokens": int(row.prompt_tokens),
        "cached_tokens": int(row.cached_tokens),
        "completion_tokens": int(row.completion_tokens),
        "cost_usd": plain(row.cost_usd),
    }
    named = {by.replace("-", "_"): None if row.name is None else str(row.name)}
    owner = {"tenant": row.owner} if by in {"task", "key"} else {}
    return {**named, **sums, **owner}


def prices_list(desk: Desk, _args: Namespace) -> list[Data]:
    found = prices.listed(desk.conn)
    if not found:
        desk.say("no prices yet: the gateway writes them down when it starts")
    return [_price(row) for row in found]


def _price(row: PriceRow) -> Data:
    return {
        "deployment": row.deployment,
        "model": row.model,
        "provider": row.provider,
        "region": row.region,
        "input": _plain(row.input_price),
        "output": _plain(row.output_price),
        "cached": _plain(row.cached_price),
        "cache_write": _plain(row.cache_write_price),
        "valid_from": shown_time(row.valid_from),
        "price_revision": row.id,
    }


def _plain(amount: Decimal | None) -> str | None:
    return None if amount is None else plain(amount)


def unit_costs(hosting: Iterable[tuple[str | None, Any]], *, exact: bool) -> list[Data]:
    """Return what a million output tokens cost on each machine, by `plugins.policy.unit_cost`.

    Args:
        hosting: Deployment and what its machine costs and does.

        exact: Six places of a dollar; else cents.
    """
    rows = []
    for deployment, machine in hosting:
        speed = machine.tokens_per_second
        cost = None if speed is None else usd_per_million(machine.usd_per_hour, speed)
        rows.append(
            {
                "deployment": deployment,
                "usd_per_hour": plain(machine.usd_per_hour),
                "tokens_per_second": _plain(speed),
                "usd_per_million": None
                if cost is None
                else format(cost.quantize(SIX_PLACES if exact else CENT), "f"),
            }
        )
    return rows


def sorted_hosting(hosting: Mapping[str, Any]) -> list[tuple[str | None, Any]]:
    return [(name, hosting[name]) for name in sorted(hosting)]
