"""A call's way to the database and back: two round trips, by the driver's own trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from plugins.ledger.holds import AsyncLedger, Settlement, Wanted
from tests.ledger.settled import Shop

BUDGETS = [("usd", "day"), ("usd", "month"), ("tokens", "total")]


class Traced(AsyncLedger):
    """Writes what goes over the wire to a file, message by message."""

    def __init__(self, url: str, trace: Path) -> None:
        super().__init__(url)
        self.file = trace.open("wb")
        self.trace = trace

    async def _on(self, conn: Any, *given: Any) -> Any:
        conn.pgconn.trace(self.file.fileno())
        try:
            return await super()._on(conn, *given)
        finally:
            conn.pgconn.untrace()

    def messages(self) -> list[tuple[str, str]]:
        """Return who sent each message and its kind, and begin anew."""
        lines = [line.split("\t") for line in self.trace.read_text(errors="replace").splitlines()]
        self.file.seek(0)
        self.file.truncate()
        return [(line[1], line[3]) for line in lines if len(line) > 3 and line[1] in {"F", "B"}]

    async def close(self) -> None:
        for conn in self._idle:
            await conn.close()
        self.file.close()


def wanted(acme: Shop) -> Wanted:
    return Wanted(
        *(uuid4(), uuid4(), 1, True, True, acme.tenant, acme.key, "job-7", None, None, "m"),
        *(acme.price, False, 10, False, 1, 20, 1),
    )


async def call(ledger: AsyncLedger, acme: Shop) -> None:
    asked = wanted(acme)
    assert (await ledger.hold(asked)).verdict == "held"
    settled = await ledger.settle(Settlement(asked.id, "ok", prompt=10, cost=Decimal("0.1")))
    assert settled.settled


@pytest.mark.parametrize("calls", [1, 5])
def test_a_call_takes_two_round_trips(
    open_shop: Callable[..., Shop], tmp_path: Path, calls: int
) -> None:
    """One to hold and one to settle under three budgets and a task, no BEGIN or COMMIT besides."""
    acme = open_shop()
    for unit, window in BUDGETS:
        acme.run(
            "INSERT INTO wicketgate.budgets (tenant_id, unit, limit_amount, window_kind)"
            f" VALUES ('{acme.tenant}', '{unit}', 1000, '{window}')"
        )

    async def work() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        ledger = Traced(acme.url, tmp_path / "trace")
        try:
            await call(ledger, acme)
            first = ledger.messages()
            for _ in range(calls):
                await call(ledger, acme)
            return first, ledger.messages()
        finally:
            await ledger.close()

    first, kept = asyncio.run(work())

    assert kept.count(("B", "ReadyForQuery")) == 2 * calls
    assert kept.count(("F", "Execute")) == 2 * calls
    assert ("F", "Query") not in kept
    # A connection's first call prepares its two statements, once each.
    assert first.count(("B", "ReadyForQuery")) == 4
    assert first.count(("F", "Execute")) == 2
