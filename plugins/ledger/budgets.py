"""Budgets: set, raise, list, remove, with what their current window holds.

What a budget has used is decided by `hold_v1` and `settle_v1` in the database; here a new one
only takes over what came before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Numeric,
    and_,
    cast,
    func,
    insert,
    or_,
    select,
    text,
    update,
)

from plugins.ledger import audit
from plugins.ledger.tables import (
    attempts,
    budget_windows,
    budgets,
    open_attempts,
    spend_quarters,
    tasks,
    tenants,
)
from plugins.policy.money import plain


@dataclass(frozen=True, slots=True)
class Scope:
    """What a budget covers: all of a tenant, or one key, task type or task of it.

    Attributes:
        unit: `usd` or `tokens`.

        window: `day`, `week`, `month` or `total`.
    """

    tenant_id: UUID
    key_id: UUID | None
    task_type: str | None
    task_id: UUID | None
    unit: str
    window: str


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A budget, and where it stands in the window that holds the present moment.

    Attributes:
        limit: What counts now: a raise, while it lasts.

        base_limit: What counts without a raise.

        resets_at: The end of the window; None for `total`.
    """

    id: UUID
    tenant_id: UUID
    tenant: str
    key_id: UUID | None
    task_type: str | None
    task_id: UUID | None
    task: str | None
    unit: str
    limit: Decimal
    base_limit: Decimal
    window: str
    on_exhausted: str
    used: Decimal
    held: Decimal
    resets_at: datetime | None
    raised_until: datetime | None
    expires_at: datetime | None
    removed_at: datetime | None
    created_at: datetime

    @property
    def remaining(self) -> Decimal:
        return max(self.limit - self.used - self.held, Decimal(0))

    def state(self, now: datetime) -> str:
        if self.removed_at is not None:
            return "removed"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


_starts_at = func.wicketgate.window_start(
    budgets.c.window_kind, tenants.c.zone, func.now(), budgets.c.created_at
)
_limit = func.wicketgate.limit_at(
    budgets.c.limit_amount, budgets.c.raised_to, budgets.c.raised_until, func.now(), type_=Numeric()
)
_live = and_(
    budgets.c.removed_at.is_(None),
    or_(budgets.c.expires_at.is_(None), budgets.c.expires_at > func.now()),
)
COLUMNS: tuple[ColumnElement[Any], ...] = (
    budgets.c.id,
    budgets.c.tenant_id,
    tenants.c.name,
    budgets.c.key_id,
    budgets.c.task_type,
    budgets.c.task_id,
    tasks.c.name,
    budgets.c.unit,
    _limit,
    budgets.c.limit_amount,
    budgets.c.window_kind,
    budgets.c.on_exhausted,
    func.coalesce(budget_windows.c.used, 0, type_=Numeric()),
    func.coalesce(budget_windows.c.held, 0, type_=Numeric()),
    func.wicketgate.window_end(budgets.c.window_kind, tenants.c.zone, func.now()),
    budgets.c.raised_until,
    budgets.c.expires_at,
    budgets.c.removed_at,
    budgets.c.created_at,
)
_JOINED = (
    budgets.join(tenants)
    .outerjoin(tasks, tasks.c.id == budgets.c.task_id)
    .outerjoin(
        budget_windows,
        and_(
            budget_windows.c.budget_id == budgets.c.id,
            budget_windows.c.starts_at == _starts_at,
        ),
    )
)


def listed(conn: Connection, tenant_id: UUID | None = None) -> list[BudgetRow]:
    """Return the budgets in force, of one tenant or of all, in the order they were made."""
    statement = (
        select(*COLUMNS)
        .select_from(_JOINED)
        .where(_live)
        .order_by(tenants.c.name, budgets.c.created_at, budgets.c.id)
    )
    if tenant_id is not None:
        statement = statement.where(budgets.c.tenant_id == tenant_id)
    return [BudgetRow(*row) for row in conn.execute(statement)]


def find(conn: Connection, budget_id: UUID | None) -> BudgetRow | None:
    """Return the budget of that id, also one that was removed or has expired."""
    row = conn.execute(
        select(*COLUMNS).select_from(_JOINED).where(budgets.c.id == budget_id)
    ).one_or_none()
    return None if row is None else BudgetRow(*row)


def of_scope(conn: Connection, scope: Scope) -> BudgetRow | None:
    """Return the budget that was set for exactly *scope* and not removed; it may have expired."""
    row = conn.execute(
        select(*COLUMNS)
        .select_from(_JOINED)
        .where(
            budgets.c.removed_at.is_(None),
            *(
                column.is_not_distinct_from(value)
                for column, value in zip(_SCOPE, _scope_values(scope), strict=True)
            ),
        )
    ).one_or_none()
    return None if row is None else BudgetRow(*row)


_SCOPE: tuple[ColumnElement[Any], ...] = (
    budgets.c.tenant_id,
    budgets.c.key_id,
    budgets.c.task_type,
    budgets.c.task_id,
    budgets.c.unit,
    budgets.c.window_kind,
)


def _scope_values(scope: Scope) -> tuple[object, ...]:
    return (
        *(scope.tenant_id, scope.key_id, scope.task_type, scope.task_id),
        *(scope.unit, scope.window),
    )


def create(
    conn: Connection,
    scope: Scope,
    limit: Decimal,
    on_exhausted: str,
    expires_at: datetime | None,
    *,
    actor: str,
) -> BudgetRow:
    """Make a budget that counts what its current window has used and what is still open."""
    stop_holds(conn)
    names = (column.name for column in _SCOPE)
    budget_id = conn.execute(
        insert(budgets)
        .values(
            **dict(zip(names, _scope_values(scope), strict=True)),
            limit_amount=limit,
            on_exhausted=on_exhausted,
            expires_at=expires_at,
            # Not now(): holds that this transaction waited for may be later than its start.
            created_at=func.clock_timestamp(),
        )
        .returning(budgets.c.id)
    ).scalar_one()
    _take_over(conn, budget_id, scope)
    budget = _get(conn, budget_id)
    _record(conn, budget, "budget set", actor, expires_at=_iso(expires_at))
    return budget


def change(
    conn: Connection, budget: BudgetRow, limit: Decimal, on_exhausted: str | None, *, actor: str
) -> BudgetRow:
    """Give *budget* another limit for good; a raise ends with it."""
    values = {"limit_amount": limit, "raised_to": None, "raised_until": None}
    _update(conn, budget, on_exhausted, values)
    changed = _get(conn, budget.id)
    _record(conn, changed, "budget set", actor, old_limit=plain(budget.limit))
    return changed


def lift(
    conn: Connection,
    budget: BudgetRow,
    limit: Decimal,
    until: datetime,
    on_exhausted: str | None,
    *,
    actor: str,
) -> BudgetRow:
    """Give *budget* another limit until a moment, after which its own holds again."""
    _update(conn, budget, on_exhausted, {"raised_to": limit, "raised_until": until})
    changed = _get(conn, budget.id)
    _record(
        conn,
        changed,
        "budget raise",
        actor,
        old_limit=plain(budget.base_limit),
        raised_until=_iso(until),
    )
    return changed


def remove(conn: Connection, budget: BudgetRow, *, actor: str) -> BudgetRow:
    """Take *budget* out of force; its windows stay."""
    conn.execute(update(budgets).where(budgets.c.id == budget.id).values(removed_at=func.now()))
    removed = _get(conn, budget.id)
    _record(conn, removed, "budget remove", actor)
    return removed


def retire(conn: Connection, budget: BudgetRow) -> None:
    """Make room for another budget where one has expired."""
    conn.execute(
        update(budgets).where(budgets.c.id == budget.id).values(removed_at=budget.expires_at)
    )


def stop_holds(conn: Connection) -> None:
    """Let the holds and settlements under way end, and the next ones wait for this transaction.

    A hold that had already asked for the budgets would go uncounted by one made meanwhile. The
    advisory lock is the first that a hold takes, the table the first that a settlement does, so
    neither can be waiting for something of ours while we wait for it.
    """
    conn.execute(text("SELECT pg_advisory_xact_lock(hashtext('wicketgate.budgets'))"))
    conn.execute(text("LOCK TABLE wicketgate.open_attempts IN EXCLUSIVE MODE"))


def _take_over(conn: Connection, budget_id: UUID, scope: Scope) -> None:
    """Charge what the budget covers: what was settled in this window, and what is open in it."""
    # Not now(): the transaction may have begun in the window before.
    start = func.wicketgate.window_start(
        budgets.c.window_kind, tenants.c.zone, func.clock_timestamp(), budgets.c.created_at
    )
    starts_at = conn.execute(
        select(start).select_from(budgets.join(tenants)).where(budgets.c.id == budget_id)
    ).scalar_one()
    # What is open goes into a `total` budget whenever it was admitted.
    open_here = _covered(open_attempts.c, scope)
    used = Decimal(0)
    if scope.window != "total":
        open_here = and_(open_here, open_attempts.c.admitted_at >= starts_at)
        used = _used(conn, scope, starts_at)
    amount = cast(
        func.coalesce(open_attempts.c.held_usd, 0)
        if scope.unit == "usd"
        else open_attempts.c.held_tokens,
        Numeric(),
    )
    held = conn.execute(
        select(func.coalesce(func.sum(amount), 0, type_=Numeric())).where(open_here)
    ).scalar_one()
    conn.execute(
        insert(budget_windows).values(
            budget_id=budget_id, starts_at=starts_at, used=used, held=held
        )
    )
    conn.execute(
        update(open_attempts)
        .where(open_here)
        .values(
            budget_ids=func.array_append(open_attempts.c.budget_ids, budget_id),
            window_starts=func.array_append(open_attempts.c.window_starts, starts_at),
            amounts=func.array_append(open_attempts.c.amounts, amount),
        )
    )


def _used(conn: Connection, scope: Scope, starts_at: datetime) -> Decimal:
    """Return what was charged since *starts_at*, from the sums where they tell it."""
    if scope.task_id is None:
        # Every zone's day begins with a quarter of an hour.
        table: Any = spend_quarters
        since = spend_quarters.c.quarter >= starts_at
    else:
        table = attempts
        since = attempts.c.admitted_at >= starts_at
    amount = (
        func.coalesce(table.c.cost_usd, 0)
        if scope.unit == "usd"
        else table.c.prompt_tokens + table.c.completion_tokens
    )
    used: Decimal = conn.execute(
        select(func.coalesce(func.sum(amount), 0, type_=Numeric())).where(
            since, _covered(table.c, scope)
        )
    ).scalar_one()
    return used


def _covered(columns: Any, scope: Scope) -> ColumnElement[bool]:
    covered: ColumnElement[bool] = columns.tenant_id == scope.tenant_id
    if scope.key_id is not None:
        covered = and_(covered, columns.key_id == scope.key_id)
    if scope.task_type is not None:
        covered = and_(covered, columns.task_type == scope.task_type)
    if scope.task_id is not None:
        covered = and_(covered, columns.task_id == scope.task_id)
    return covered


def _update(
    conn: Connection, budget: BudgetRow, on_exhausted: str | None, values: Mapping[str, object]
) -> None:
    if on_exhausted is not None:
        values = {**values, "on_exhausted": on_exhausted}
    conn.execute(update(budgets).where(budgets.c.id == budget.id).values(**values))


def _get(conn: Connection, budget_id: UUID) -> BudgetRow:
    row = conn.execute(select(*COLUMNS).select_from(_JOINED).where(budgets.c.id == budget_id)).one()
    return BudgetRow(*row)


def _record(
    conn: Connection, budget: BudgetRow, action: str, actor: str, **details: str | None
) -> None:
    audit.record(conn, actor, action, {**subject(budget), **details})


def subject(budget: BudgetRow) -> dict[str, str | None]:
    """Return how the audit log names *budget*."""
    return {
        "budget_id": str(budget.id),
        "tenant": budget.tenant,
        "key_id": None if budget.key_id is None else str(budget.key_id),
        "task_type": budget.task_type,
        "task": budget.task,
        "unit": budget.unit,
        "window": budget.window,
        "limit": plain(budget.limit),
        "on_exhausted": budget.on_exhausted,
    }


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
