"""What was spent, by tenant, task, task type, model, provider, day or key.

Everything but tasks comes from sums of a quarter of an hour: each zone's day begins with one, so
a day is exact in any zone, and days add up to their range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Numeric, Select, func, null, select

from plugins.ledger.tables import adjustments, attempts, keys, spend_quarters, tasks, tenants

#: What `by` may be; `total` is one row of everything.
GROUPINGS = ("tenant", "task", "task-type", "model", "provider", "day", "key")


@dataclass(frozen=True, slots=True)
class Range:
    """Attributes:
    tenant_id: None: all tenants.

    since: The first moment; None: from the beginning.

    until: The first moment after it; None: without an end.

    zone: Whose days are meant.
    """

    tenant_id: UUID | None
    since: datetime | None
    until: datetime | None
    zone: str


@dataclass(frozen=True, slots=True)
class SpendRow:
    """Attributes:
    name: What it is by; None for calls that named no task or task type.

    owner: The tenant of a task or key, whose names are not unique without it.

    unpriced: How many attempts have no price, and so no part in `cost_usd`.
    """

    name: str | None
    owner: str | None
    requests: int
    attempts: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_usd: Decimal
    unpriced: int


def spend(conn: Connection, by: str, within: Range) -> list[SpendRow]:
    """Return one row for each value of *by* that was called or adjusted, sorted by it."""
    if by == "task":
        return [SpendRow(*row) for row in conn.execute(_by_task(within))]
    found = [SpendRow(*row) for row in conn.execute(_by_quarters(by, within))]
    return _adjusted(conn, found, by, within) if by in {"tenant", "day"} else found


def _by_quarters(by: str, within: Range) -> Select[Any]:
    q = spend_quarters.c
    name, owner = _named(by, within.zone)
    requests = {"model": q.model_requests, "provider": q.provider_requests}.get(by, q.requests)
    statement = (
        select(
            name,
            owner,
            *(
                func.sum(column)
                for column in (
                    *(requests, q.attempts, q.prompt_tokens, q.cached_tokens),
                    *(q.completion_tokens, q.cost_usd, q.unpriced),
                )
            ),
        )
        .join_from(spend_quarters, tenants, tenants.c.id == q.tenant_id)
        .join(keys, keys.c.id == q.key_id)
        .group_by("by_name", "by_owner")
        .order_by("by_name", "by_owner")
    )
    return _within(statement, q.quarter, q.tenant_id, within)


def _named(by: str, zone: str) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    q = spend_quarters.c
    no_owner: ColumnElement[Any] = null()
    if by == "day":
        return _day(q.quarter, zone).label("by_name"), no_owner.label("by_owner")
    if by == "key":
        return q.key_id.label("by_name"), tenants.c.name.label("by_owner")
    names: dict[str, ColumnElement[Any]] = {
        "tenant": tenants.c.name,
        "task-type": func.nullif(q.task_type, ""),
        "model": q.model,
        "provider": q.provider,
    }
    return names[by].label("by_name"), no_owner.label("by_owner")


def _by_task(within: Range) -> Select[Any]:
    """A task's own sums have no dates and no cached tokens, so its attempts are added up."""
    a = attempts.c
    statement = (
        select(
            tasks.c.name.label("by_name"),
            tenants.c.name.label("by_owner"),
            func.count(a.request_id.distinct()),
            func.count(),
            *(func.sum(c) for c in (a.prompt_tokens, a.cached_tokens, a.completion_tokens)),
            func.coalesce(func.sum(a.cost_usd), 0, type_=Numeric()),
            func.count().filter(a.cost_usd.is_(None)),
        )
        .join_from(attempts, tenants, tenants.c.id == a.tenant_id)
        .outerjoin(tasks, tasks.c.id == a.task_id)
        .group_by("by_name", "by_owner")
        .order_by("by_owner", "by_name")
    )
    return _within(statement, a.admitted_at, a.tenant_id, within)


def _within(
    statement: Select[Any], at: ColumnElement[Any], tenant_id: ColumnElement[Any], within: Range
) -> Select[Any]:
    if within.tenant_id is not None:
        statement = statement.where(tenant_id == within.tenant_id)
    if within.since is not None:
        statement = statement.where(at >= within.since)
    if within.until is not None:
        statement = statement.where(at < within.until)
    return statement


def _day(at: ColumnElement[Any], zone: str) -> ColumnElement[Any]:
    return func.to_char(func.timezone(zone, at), "YYYY-MM-DD")


def _adjusted(conn: Connection, found: list[SpendRow], by: str, within: Range) -> list[SpendRow]:
    """Add the corrections, each in the tenant and on the day it was made."""
    name = tenants.c.name if by == "tenant" else _day(adjustments.c.at, within.zone)
    statement: Select[Any] = (
        select(name.label("by_name"), func.sum(adjustments.c.amount_usd))
        .join_from(adjustments, tenants)
        .group_by("by_name")
    )
    statement = _within(statement, adjustments.c.at, adjustments.c.tenant_id, within)
    rows = {row.name: row for row in found}
    for called, amount in conn.execute(statement):
        row = rows.get(called, SpendRow(called, None, 0, 0, 0, 0, 0, Decimal(0), 0))
        rows[called] = replace(row, cost_usd=row.cost_usd + amount)
    return sorted(rows.values(), key=lambda row: row.name or "")
