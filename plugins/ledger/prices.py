"""Prices of deployments, and what machines of our own cost: dated, never altered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, select, text
from sqlalchemy.dialects.postgresql import distinct_on

from plugins.ledger.tables import hosting, price_revisions


@dataclass(frozen=True, slots=True)
class PriceRow:
    """One revision: US dollars for one token from `valid_from` on; None: not stated."""

    id: int
    deployment: str
    model: str
    provider: str
    region: str
    input_price: Decimal | None
    output_price: Decimal | None
    cached_price: Decimal | None
    cache_write_price: Decimal | None
    valid_from: datetime


@dataclass(frozen=True, slots=True)
class HostingRow:
    """What a deployment's own machine costs and does; `tokens_per_second` None: not measured."""

    deployment: str
    usd_per_hour: Decimal
    tokens_per_second: Decimal | None


def listed(conn: Connection) -> list[PriceRow]:
    """Return every revision, of each deployment oldest first."""
    columns: tuple[ColumnElement[Any], ...] = (
        price_revisions.c.id,
        price_revisions.c.deployment,
        price_revisions.c.model,
        price_revisions.c.provider,
        price_revisions.c.region,
        price_revisions.c.input_price,
        price_revisions.c.output_price,
        price_revisions.c.cached_price,
        price_revisions.c.cache_write_price,
        price_revisions.c.valid_from,
    )
    rows = conn.execute(select(*columns).order_by(price_revisions.c.deployment, columns[0]))
    return [PriceRow(*row) for row in rows]


def hosting_now(conn: Connection) -> list[HostingRow]:
    """Return what each machine costs by the newest revision, sorted by deployment."""
    rows = conn.execute(
        select(hosting.c.deployment, hosting.c.usd_per_hour, hosting.c.tokens_per_second)
        .ext(distinct_on(hosting.c.deployment))
        .order_by(hosting.c.deployment, hosting.c.id.desc())
    )
    return [HostingRow(*row) for row in rows]


def record_hosting(conn: Connection, rows: Iterable[HostingRow]) -> int:
    """Write down each of *rows* that differs from the newest revision; return how many did."""
    # Workers that start at one moment must not write the same change twice.
    conn.execute(text("SELECT pg_advisory_xact_lock(hashtext('wicketgate.prices'))"))
    known = set(hosting_now(conn))
    new = [row for row in rows if row not in known]
    for row in new:
        conn.execute(
            insert(hosting).values(
                deployment=row.deployment,
                usd_per_hour=row.usd_per_hour,
                tokens_per_second=row.tokens_per_second,
            )
        )
    return len(new)
