"""Hold and settle: the two statements of a call's way, one round trip each.

Both are functions in the database (`migrations/functions`), so that each is one transaction.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import namedtuple_row

from plugins.ledger.database import WAITS, LedgerUnavailable, sqlalchemy_url

#: An attempt whose worker says nothing for so long is closed by another one.
LEASE = timedelta(seconds=30)
#: Seconds to wait for a statement; longer means that the database is away.
PATIENCE = 1.5
STATEMENT_TIMEOUT_MS = 900
#: Seconds after a failure in which nobody else tries: what waits is told at once.
REST = 0.25
#: Seconds a call may wait for its turn while the database works through a burst.
TURN_LIMIT = 30.0
POOL_SIZE = 8
#: What a call of `Clerk` raises while the database is away.
UNREACHABLE = (psycopg.OperationalError, LedgerUnavailable)

Values = tuple[Any, ...] | Mapping[str, Any]

_HOLD = (
    "SELECT * FROM wicketgate.hold_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,"
    " %s, %s, %s, %s, %s, %s, NULL)"
)
_SETTLE = (
    "SELECT * FROM wicketgate.settle_v1"
    "(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, NULL)"
)


_STANDING = """
WITH now AS (SELECT clock_timestamp() AS at), mine AS (
    SELECT b.id, k.prefix AS key, b.task_type, t.name AS task, b.unit,
        wicketgate.limit_at(b.limit_amount, b.raised_to, b.raised_until, now.at) AS bound,
        b.window_kind, coalesce(w.used, 0) AS used, coalesce(w.held, 0) AS held,
        wicketgate.window_end(b.window_kind, tenants.zone, now.at) AS resets_at, b.on_exhausted
    FROM now CROSS JOIN wicketgate.budgets b
    JOIN wicketgate.tenants ON tenants.id = b.tenant_id
    LEFT JOIN wicketgate.keys k ON k.id = b.key_id
    LEFT JOIN wicketgate.tasks t ON t.id = b.task_id
    LEFT JOIN wicketgate.budget_windows w ON w.budget_id = b.id AND w.starts_at =
        wicketgate.window_start(b.window_kind, tenants.zone, now.at, b.created_at)
    WHERE b.tenant_id = %(tenant)s AND b.removed_at IS NULL
        AND (b.expires_at IS NULL OR b.expires_at > now.at)
        AND (b.key_id IS NULL OR b.key_id = %(key)s) AND (t.id IS NULL OR t.state = 'open')
    ORDER BY b.task_id NULLS FIRST, b.created_at LIMIT 200
), today AS (
    SELECT coalesce(sum(requests), 0) AS requests, coalesce(sum(attempts), 0) AS attempts,
        coalesce(sum(prompt_tokens), 0) AS prompt_tokens,
        coalesce(sum(completion_tokens), 0) AS completion_tokens,
        coalesce(sum(cost_usd), 0) AS cost_usd
    FROM now CROSS JOIN wicketgate.spend_quarters q
    JOIN wicketgate.tenants ON tenants.id = q.tenant_id
    WHERE q.tenant_id = %(tenant)s AND q.quarter >= date_trunc('day', now.at, tenants.zone)
)
SELECT
    (SELECT coalesce(json_agg(json_build_object('id', id, 'key', key, 'task_type', task_type,
        'task', task, 'unit', unit, 'limit', trim_scale(bound)::text, 'window', window_kind,
        'used', trim_scale(used)::text, 'held', trim_scale(held)::text,
        'remaining', trim_scale(greatest(bound - used - held, 0))::text,
        'resets_at', resets_at, 'on_exhausted', on_exhausted)), '[]') FROM mine) AS budgets,
    (SELECT json_build_object('requests', requests, 'attempts', attempts,
        'prompt_tokens', prompt_tokens, 'completion_tokens', completion_tokens,
        'cost_usd', trim_scale(cost_usd)::text) FROM today) AS today
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one attempt asks to have set aside.

    Attributes:
        outputs: How many answers are asked for; each may be as long as `cap`.

        floor: The shortest cap that is still worth a call.

        usd_left: What is left of the request's own money cap; None: it has none.

        task_budget: What a new task of this type starts with: `unit`, `limit`, `window`,
            `on_exhausted`, as texts.
    """

    id: UUID
    request_id: UUID
    number: int
    first_of_model: bool
    first_of_provider: bool
    tenant_id: UUID
    key_id: UUID
    task: str | None
    task_type: str | None
    task_budget: Mapping[str, str] | None
    model_requested: str
    price_id: int
    stream: bool
    prompt_tokens: int
    writes_cache: bool
    outputs: int
    cap: int
    floor: int
    usd_left: Decimal | None = None
    tokens_left: int | None = None


@dataclass(frozen=True, slots=True)
class HoldResult:
    """What the database decided; see `migrations/functions/hold_v1.sql`."""

    verdict: str
    cap: int | None
    held_usd: Decimal | None
    held_tokens: int | None
    left_usd: Decimal | None
    left_tokens: Decimal | None
    scope: str | None
    unit: str | None
    window_kind: str | None
    resets_at: datetime | None
    on_exhausted: str | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """How one attempt ended; status `void`: it never reached a provider, and leaves no row."""

    id: UUID
    status: str
    usage_source: str = "none"
    usage_flag: str | None = None
    prompt: int = 0
    cached: int = 0
    cache_write: int = 0
    completion: int = 0
    reasoning: int = 0
    cost: Decimal | None = None
    computed: Decimal | None = None
    reported: Decimal | None = None
    error: str | None = None
    first_byte_at: datetime | None = None

    def values(self) -> tuple[Any, ...]:
        return (
            *(self.id, self.status, self.usage_source, self.usage_flag, self.prompt),
            *(self.cached, self.cache_write, self.completion, self.reasoning, self.cost),
            *(self.computed, self.reported, self.error, self.first_byte_at),
        )


@dataclass(frozen=True, slots=True)
class Settled:
    """Attributes:
    settled: False when somebody else had closed the attempt already.

    warnings: Budgets that have just passed a warn level, once for each window.
    """

    settled: bool
    left_usd: Decimal | None
    left_tokens: Decimal | None
    warnings: list[dict[str, Any]] | None


class AsyncLedger:
    """Connections for the event loop that first uses it: made when needed, kept for the next."""

    def __init__(self, ledger_url: str) -> None:
        self._conninfo = conninfo(ledger_url)
        self._idle: list[AsyncConnection[Any]] = []
        self._turns = asyncio.Semaphore(POOL_SIZE)
        self._resting_until = 0.0
        self._running: set[asyncio.Task[Any]] = set()

    async def hold(self, wanted: Wanted) -> HoldResult:
        """Raises:
        LedgerUnavailable: If the database did not answer in time; the hold may stand all the
            same, and must be made void.
        """
        budget = None if wanted.task_budget is None else json.dumps(dict(wanted.task_budget))
        values = (
            *(wanted.id, wanted.request_id, wanted.number, wanted.first_of_model),
            *(wanted.first_of_provider, wanted.tenant_id, wanted.key_id, wanted.task),
            *(wanted.task_type, budget, wanted.model_requested, wanted.price_id, wanted.stream),
            *(wanted.prompt_tokens, wanted.writes_cache, wanted.outputs, wanted.cap),
            *(wanted.floor, wanted.usd_left, wanted.tokens_left, LEASE),
        )
        return HoldResult(*await self._one(_HOLD, values))

    async def settle(self, settlement: Settlement) -> Settled:
        return Settled(*await self._one(_SETTLE, settlement.values()))

    async def end_task(self, tenant_id: UUID, name: str, state: str) -> None:
        """Give an open task its outcome; one that has ended keeps the one it has."""
        await self._one(
            "WITH ended AS (UPDATE wicketgate.tasks SET state = %s, ended_at = clock_timestamp()"
            " WHERE tenant_id = %s AND name = %s AND state = 'open' RETURNING id)"
            " SELECT count(*) AS ended FROM ended",
            (state, tenant_id, name),
        )

    async def standing(self, tenant_id: UUID, key_id: UUID) -> tuple[Any, Any]:
        """Return the budgets that cover a key, and what its tenant has spent today."""
        row = await self._one(_STANDING, {"tenant": tenant_id, "key": key_id})
        return row.budgets, row.today

    async def _one(self, statement: str, values: Values) -> Any:
        """Run a statement of one row in its turn, within a time that does not depend on others.

        The statement itself is never cancelled: a caller that leaves, or loses patience, does
        not break a connection.
        """
        try:
            async with asyncio.timeout(TURN_LIMIT):
                await self._turns.acquire()
        except TimeoutError:
            raise LedgerUnavailable from None
        try:
            if time.monotonic() < self._resting_until:
                raise LedgerUnavailable
            task = asyncio.ensure_future(self._execute(statement, values))
            self._running.add(task)
            task.add_done_callback(self._done)
            done, _ = await asyncio.wait({task}, timeout=PATIENCE)
            if not done:
                self._resting_until = time.monotonic() + REST
                raise LedgerUnavailable
            return task.result()
        finally:
            self._turns.release()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and isinstance(task.exception(), LedgerUnavailable):
            self._resting_until = time.monotonic() + REST

    async def _execute(self, statement: str, values: Values) -> Any:
        try:
            kept = self._idle.pop() if self._idle else None
            if kept is not None:
                try:
                    return await self._on(kept, statement, values)
                except psycopg.OperationalError:
                    if not kept.broken:
                        raise
                    # The server went and came back: what was kept is of no use any more. A
                    # statement that arrived all the same cannot be carried out twice: a hold
                    # has its id, a settlement its open row.
                    self._idle.clear()
            fresh = await AsyncConnection.connect(
                self._conninfo,
                autocommit=True,
                prepare_threshold=0,
                row_factory=namedtuple_row,
                options=f"-c statement_timeout={STATEMENT_TIMEOUT_MS}",
            )
            return await self._on(fresh, statement, values)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise LedgerUnavailable from error

    async def _on(self, conn: AsyncConnection[Any], statement: str, values: Values) -> Any:
        try:
            cursor = await conn.execute(statement, values)
            return await cursor.fetchone()
        finally:
            if conn.closed:
                await conn.close()
            else:
                self._idle.append(conn)


def conninfo(ledger_url: str) -> str:
    """Return the address for the driver itself, with our waits where it states none."""
    url = sqlalchemy_url(ledger_url)
    url = url.update_query_dict({n: v for n, v in WAITS.items() if n not in url.query})
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


class Clerk:
    """The same database for a thread: what need not be done on a call's way."""

    def __init__(self, ledger_url: str) -> None:
        self._conn = psycopg.connect(
            conninfo(ledger_url),
            autocommit=True,
            prepare_threshold=0,
            row_factory=namedtuple_row,
            options="-c statement_timeout=5000",
        )

    def close(self) -> None:
        self._conn.close()

    def price(self, deployment: str, model: str, provider: str, region: str, *prices: Any) -> int:
        """Return the id of this price's revision, a new one if the last one differs."""
        row: Any = self._conn.execute(
            "SELECT wicketgate.price_v1(%s, %s, %s, %s, %s, %s, %s, %s) AS id",
            (deployment, model, provider, region, *prices),
        ).fetchone()
        return int(row.id)

    def renew(self, ids: list[UUID]) -> None:
        """Put off the end of the leases of *ids*."""
        self._conn.execute(
            "UPDATE wicketgate.open_attempts SET lease_until = clock_timestamp() + %s"
            " WHERE id = ANY(%s)",
            (LEASE, ids),
        )

    def sweep(self) -> int:
        """Close what dead workers left, at what it held; return how many."""
        closed = 0
        while closed < 1000:
            row: Any = self._conn.execute("SELECT wicketgate.sweep_v1(NULL) AS id").fetchone()
            if row.id is None:
                break
            closed += 1
        return closed

    def settle(self, settlement: Settlement) -> Settled:
        row: Any = self._conn.execute(_SETTLE, settlement.values()).fetchone()
        return Settled(*row)

    def make_partitions(self) -> None:
        """Have tables ready for this month's attempts and the next one's."""
        self._conn.execute("SELECT wicketgate.make_partition(now())")
        self._conn.execute("SELECT wicketgate.make_partition(now() + interval '1 month')")

    def leaked(self) -> int:
        """Return how many windows hold something else than their open attempts do; must be 0."""
        row: Any = self._conn.execute(
            """
            SELECT count(*) AS n FROM (
                SELECT w.budget_id, w.starts_at, w.held FROM wicketgate.budget_windows w
                WHERE w.held <> 0
            ) w FULL JOIN (
                SELECT a.id, a.starts_at, sum(a.amount) AS amount FROM wicketgate.open_attempts o,
                    unnest(o.budget_ids, o.window_starts, o.amounts) AS a (id, starts_at, amount)
                GROUP BY 1, 2
            ) o ON o.id = w.budget_id AND o.starts_at = w.starts_at
            WHERE coalesce(w.held, 0) <> coalesce(o.amount, 0)
            """
        ).fetchone()
        return int(row.n)
