"""Attempts for tests: held and settled by the database's own functions, at any time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from secrets import token_bytes
from typing import Any
from uuid import UUID, uuid4

import psycopg


@dataclass
class Shop:
    """One tenant with one key, whose calls go to one deployment."""

    url: str
    tenant: UUID
    key: UUID
    price: int
    _conn: psycopg.Connection[Any] = field(repr=False)

    def hold(self, at: str | None = None, **asked: Any) -> UUID:
        """Hold 10 prompt and 20 completion tokens, or as *asked*, and return the attempt's id."""
        attempt = uuid4()
        given = {
            "request": uuid4(), "number": 1, "task": None, "task_type": None, "key": self.key,
            "price": self.price, **asked,
        }  # fmt: skip
        verdict = self._conn.execute(
            "SELECT verdict FROM wicketgate.hold_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, NULL,"
            " 'm', %s, false, 10, false, 1, 20, 1, NULL, NULL, '30 s', %s)",
            (
                *(attempt, given["request"], given["number"], given["number"] == 1),
                *(given["number"] == 1, self.tenant, given["key"], given["task"]),
                *(given["task_type"], given["price"], moment(at)),
            ),
        ).fetchone()
        assert verdict == ("held",)
        return attempt

    def settle(
        self, attempt: UUID, usd: str | None, *, status: str = "ok", at: str | None = None
    ) -> None:
        """Close it with 10 prompt tokens, 4 of them cached, and 5 completion tokens."""
        cost = None if usd is None else Decimal(usd)
        settled = self._conn.execute(
            "SELECT settled FROM wicketgate.settle_v1(%s, %s, 'provider', NULL, 10, 4, 0, 5, 2,"
            " %s, %s, NULL, NULL, NULL, %s)",
            (attempt, status, cost, cost, moment(at)),
        ).fetchone()
        assert settled == (True,)

    def call(self, usd: str | None, at: str | None = None, **asked: Any) -> None:
        self.settle(self.hold(at, **asked), usd, at=at)

    def new_price(self, deployment: str, model: str, provider: str) -> int:
        return new_price(self._conn, deployment, model, provider)

    def run(self, statement: str) -> list[Any]:
        cursor = self._conn.execute(statement)
        return cursor.fetchall() if cursor.description else []


def shop(conn: psycopg.Connection[Any], url: str, name: str, zone: str = "UTC") -> Shop:
    tenant = one(
        conn,
        "INSERT INTO wicketgate.tenants (name, zone) VALUES (%s, %s) RETURNING id",
        (name, zone),
    )
    key = one(
        conn,
        "INSERT INTO wicketgate.keys (tenant_id, digest, prefix) VALUES (%s, %s, 'sk-wg-0000')"
        " RETURNING id",
        (tenant, token_bytes(32)),
    )
    return Shop(url, tenant, key, new_price(conn, "d-1", "m", "p"), conn)


def new_price(conn: psycopg.Connection[Any], deployment: str, model: str, provider: str) -> int:
    price: int = one(
        conn,
        "SELECT wicketgate.price_v1(%s, %s, %s, 'eu', 0.000001, 0.00000015, NULL, NULL)",
        (deployment, model, provider),
    )
    return price


def one(conn: psycopg.Connection[Any], statement: str, values: tuple[Any, ...]) -> Any:
    row = conn.execute(statement, values).fetchone()
    assert row is not None
    return row[0]


def moment(at: str | None) -> datetime | None:
    return None if at is None else datetime.fromisoformat(at)
