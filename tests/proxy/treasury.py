"""Budgets for the tests' tenants, and what the ledger says of them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from tests.proxy.launch import eventually
from tests.proxy.office import Tenant


@dataclass(frozen=True)
class Treasury:
    url: str

    def ask(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as conn:
            cursor = conn.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def budget(
        self,
        tenant: Tenant,
        limit: str,
        *,
        unit: str = "usd",
        window: str = "day",
        on_exhausted: str = "refuse",
        task_type: str | None = None,
    ) -> UUID:
        (row,) = self.ask(
            "INSERT INTO wicketgate.budgets (tenant_id, unit, limit_amount, window_kind,"
            " on_exhausted, task_type) SELECT id, %s, %s, %s, %s, %s FROM wicketgate.tenants"
            " WHERE name = %s RETURNING id",
            *(unit, Decimal(limit), window, on_exhausted, task_type, tenant.name),
        )
        found: UUID = row["id"]
        return found

    def spent(self, budget: UUID, amount: str) -> None:
        """Let today's window of *budget* have used *amount* already."""
        self.ask(
            "INSERT INTO wicketgate.budget_windows (budget_id, starts_at, used)"
            " VALUES (%s, date_trunc('day', now(), 'UTC'), %s)",
            *(budget, Decimal(amount)),
        )

    def standing(self, budget: UUID) -> tuple[Decimal, Decimal]:
        """Return what a budget has used and holds, over its windows."""
        (row,) = self.ask(
            "SELECT coalesce(sum(used), 0) AS used, coalesce(sum(held), 0) AS held"
            " FROM wicketgate.budget_windows WHERE budget_id = %s",
            budget,
        )
        return row["used"], row["held"]

    def rows(self, tenant: Tenant, count: int | None = None) -> list[dict[str, Any]]:
        """Return a tenant's attempts in order, once nothing is open and there are *count*."""
        if count is not None:
            eventually(lambda: len(self._rows(tenant)) >= count and not self._open(tenant))
        return self._rows(tenant)

    def _rows(self, tenant: Tenant) -> list[dict[str, Any]]:
        return self.ask(
            "SELECT a.* FROM wicketgate.attempts a JOIN wicketgate.tenants t ON t.id = a.tenant_id"
            " WHERE t.name = %s ORDER BY a.admitted_at, a.number",
            tenant.name,
        )

    def _open(self, tenant: Tenant) -> int:
        return len(
            self.ask(
                "SELECT 1 FROM wicketgate.open_attempts a"
                " JOIN wicketgate.tenants t ON t.id = a.tenant_id WHERE t.name = %s",
                tenant.name,
            )
        )
