"""Tasks: open, find, finish, fail; what each has used so far is kept beside it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, func, insert, or_, select, update

from plugins.ledger import audit
from plugins.ledger.tables import tasks, tenants
from plugins.ledger.tenants import TenantRow, as_id


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it is stored.

    Attributes:
        state: `open`, `finished` or `failed`.

        cost_usd: Of all its attempts, those that failed too.
    """

    id: UUID
    tenant_id: UUID
    tenant: str
    name: str
    task_type: str | None
    state: str
    opened_at: datetime
    ended_at: datetime | None
    requests: int
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: Decimal


COLUMNS: tuple[ColumnElement[Any], ...] = (
    tasks.c.id,
    tasks.c.tenant_id,
    tenants.c.name,
    tasks.c.name,
    tasks.c.task_type,
    tasks.c.state,
    tasks.c.opened_at,
    tasks.c.ended_at,
    tasks.c.requests,
    tasks.c.attempts,
    tasks.c.prompt_tokens,
    tasks.c.completion_tokens,
    tasks.c.cost_usd,
)


def listed(
    conn: Connection, limit: int, tenant_id: UUID | None = None, state: str | None = None
) -> list[TaskRow]:
    """Return the newest *limit* tasks, newest first."""
    statement = (
        select(*COLUMNS)
        .join_from(tasks, tenants)
        .order_by(tasks.c.opened_at.desc(), tasks.c.id)
        .limit(limit)
    )
    if tenant_id is not None:
        statement = statement.where(tasks.c.tenant_id == tenant_id)
    if state is not None:
        statement = statement.where(tasks.c.state == state)
    return [TaskRow(*row) for row in conn.execute(statement)]


def named(conn: Connection, name: str, tenant_id: UUID | None = None) -> list[TaskRow]:
    """Return the tasks of that name or id: several tenants may use one name."""
    statement = (
        select(*COLUMNS)
        .join_from(tasks, tenants)
        .where(or_(tasks.c.name == name, tasks.c.id == as_id(name)))
        .order_by(tenants.c.name)
    )
    if tenant_id is not None:
        statement = statement.where(tasks.c.tenant_id == tenant_id)
    return [TaskRow(*row) for row in conn.execute(statement)]


def of_name(conn: Connection, tenant_id: UUID, name: str) -> TaskRow | None:
    row = conn.execute(
        select(*COLUMNS)
        .join_from(tasks, tenants)
        .where(tasks.c.tenant_id == tenant_id, tasks.c.name == name)
    ).one_or_none()
    return None if row is None else TaskRow(*row)


def open_task(
    conn: Connection, tenant: TenantRow, name: str, task_type: str | None, *, actor: str
) -> TaskRow:
    """Open a task that does not exist yet."""
    task_id = conn.execute(
        insert(tasks)
        .values(tenant_id=tenant.id, name=name, task_type=task_type)
        .returning(tasks.c.id)
    ).scalar_one()
    task = _get(conn, task_id)
    audit.record(conn, actor, "task open", {**subject(task), "task_type": task_type})
    return task


def end(conn: Connection, task: TaskRow, state: str, *, actor: str) -> TaskRow:
    """End *task* as `finished` or `failed`."""
    conn.execute(
        update(tasks).where(tasks.c.id == task.id).values(state=state, ended_at=func.now())
    )
    action = "task finish" if state == "finished" else "task fail"
    audit.record(conn, actor, action, subject(task))
    return _get(conn, task.id)


def _get(conn: Connection, task_id: UUID) -> TaskRow:
    row = conn.execute(
        select(*COLUMNS).join_from(tasks, tenants).where(tasks.c.id == task_id)
    ).one()
    return TaskRow(*row)


def subject(task: TaskRow) -> dict[str, str]:
    """Return how the audit log names *task*."""
    return {"task_id": str(task.id), "task": task.name, "tenant": task.tenant}
