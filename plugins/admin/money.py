"""What the commands on budgets and tasks do; see `commands` for how a command works."""

from __future__ import annotations

import re
from argparse import Namespace
from decimal import Decimal

from plugins.admin.commands import (
    Data,
    Desk,
    RefusedError,
    check_name,
    checked_expiry,
    find_key,
    find_tenant,
    say_none_yet,
    shown_time,
    tenant_asked_for,
)
from plugins.ledger import budgets, tasks
from plugins.ledger.budgets import BudgetRow, Scope
from plugins.ledger.tasks import TaskRow
from plugins.ledger.tenants import TenantRow, as_id
from plugins.policy.money import plain

#: More digits than any price has, and few enough to be told apart by a person.
USD = re.compile(r"[0-9]{1,15}(\.[0-9]{1,18})?")
TOKENS = re.compile(r"[0-9]{1,15}")


# Budgets


def budget_set(desk: Desk, args: Namespace) -> Data:
    """Make a budget, change its limit, or with `--expires` raise it for a time."""
    limit = _limit(args)
    until = None if args.expires is None else checked_expiry(args.expires, desk.now)
    for option, name in (("--task-type", args.task_type), ("--task", args.task)):
        if name is not None:
            check_name(option, name)
    tenant = find_tenant(desk, args.tenant)
    scope = _scope(desk, tenant, args)
    existing = budgets.of_scope(desk.conn, scope)
    if existing is not None and existing.state(desk.now) == "expired":
        budgets.retire(desk.conn, existing)
        existing = None
    by = desk.actor
    if existing is None:
        rule = args.on_exhausted or "refuse"
        made = budgets.create(desk.conn, scope, limit, rule, until, actor=by)
        return _budget(desk, made)
    if until is not None:
        lifted = budgets.lift(desk.conn, existing, limit, until, args.on_exhausted, actor=by)
        desk.say(f"until {shown_time(until)}; after that {plain(existing.base_limit)} again")
        return _budget(desk, lifted)
    if existing.raised_until is not None and existing.raised_until > desk.now:
        desk.say(f"the raise to {plain(existing.limit)} has ended with this")
    changed = budgets.change(desk.conn, existing, limit, args.on_exhausted, actor=by)
    return _budget(desk, changed)


def budget_list(desk: Desk, args: Namespace) -> list[Data]:
    tenant = tenant_asked_for(desk, args)
    found = budgets.listed(desk.conn, tenant.id if tenant else None)
    if not found:
        say_none_yet(desk, tenant, "budgets", "budget set", " --usd 10 --window month")
    return [_budget(desk, budget) for budget in found]


def budget_show(desk: Desk, args: Namespace) -> Data:
    return _budget(desk, _find_budget(desk, args.id))


def budget_remove(desk: Desk, args: Namespace) -> Data:
    budget = _find_budget(desk, args.id)
    if budget.removed_at is not None:
        desk.say(f"budget {budget.id} is already removed")
        return _budget(desk, budget)
    return _budget(desk, budgets.remove(desk.conn, budget, actor=desk.actor))


def _limit(args: Namespace) -> Decimal:
    if args.tokens is not None:
        if not TOKENS.fullmatch(args.tokens):
            raise RefusedError(f"--tokens: expected a whole number, got {args.tokens!r}")
        return Decimal(args.tokens)
    if not USD.fullmatch(args.usd):
        raise RefusedError(f"--usd: expected an amount such as 25 or 0.50, got {args.usd!r}")
    return Decimal(args.usd)


def _scope(desk: Desk, tenant: TenantRow, args: Namespace) -> Scope:
    """Return what the budget is for; a task that does not exist yet is opened."""
    key = None if args.key is None else find_key(desk, args)
    task_id = None
    if args.task is not None:
        task = tasks.of_name(desk.conn, tenant.id, args.task)
        if task is None:
            task = tasks.open_task(desk.conn, tenant, args.task, None, actor=desk.actor)
            desk.say(f"opened task {args.task!r}")
        task_id = task.id
    return Scope(
        tenant_id=tenant.id,
        key_id=None if key is None else key.id,
        task_type=args.task_type,
        task_id=task_id,
        unit="usd" if args.tokens is None else "tokens",
        window=args.window,
    )


def _find_budget(desk: Desk, budget_id: str) -> BudgetRow:
    found = budgets.find(desk.conn, as_id(budget_id))
    if found is None:
        raise RefusedError(f"no budget {budget_id!r}: see 'deploy/admin budget list'")
    return found


def _budget(desk: Desk, budget: BudgetRow) -> Data:
    return {
        "id": str(budget.id),
        "tenant": budget.tenant,
        "key": None if budget.key_id is None else str(budget.key_id),
        "task_type": budget.task_type,
        "task": budget.task,
        "unit": budget.unit,
        "limit": plain(budget.limit),
        "window": budget.window,
        "used": plain(budget.used),
        "held": plain(budget.held),
        "remaining": plain(budget.remaining),
        "resets_at": shown_time(budget.resets_at),
        "on_exhausted": budget.on_exhausted,
        "state": budget.state(desk.now),
        "base_limit": plain(budget.base_limit),
        "raised_until": shown_time(budget.raised_until),
        "expires_at": shown_time(budget.expires_at),
    }


# Tasks


def task_open(desk: Desk, args: Namespace) -> Data:
    check_name("task", args.task)
    if args.task_type is not None:
        check_name("--task-type", args.task_type)
    tenant = find_tenant(desk, args.tenant)
    existing = tasks.of_name(desk.conn, tenant.id, args.task)
    if existing is None:
        opened = tasks.open_task(desk.conn, tenant, args.task, args.task_type, actor=desk.actor)
        return _task(opened)
    if args.task_type not in {None, existing.task_type}:
        raise RefusedError(
            f"task {args.task!r} already exists, with task type {existing.task_type!r}"
        )
    desk.say(f"task {args.task!r} already exists")
    return _task(existing)


def task_list(desk: Desk, args: Namespace) -> list[Data]:
    tenant = tenant_asked_for(desk, args)
    found = tasks.listed(desk.conn, args.limit, tenant.id if tenant else None, args.state)
    if not found:
        desk.say("no such tasks: a task opens at its first request, or by 'deploy/admin task open'")
    return [_task(task) for task in found]


def task_show(desk: Desk, args: Namespace) -> Data:
    return _task(_find_task(desk, args))


def task_finish(desk: Desk, args: Namespace) -> Data:
    return _end(desk, args, "finished")


def task_fail(desk: Desk, args: Namespace) -> Data:
    return _end(desk, args, "failed")


def _end(desk: Desk, args: Namespace, state: str) -> Data:
    task = _find_task(desk, args)
    if task.state == "open":
        return _task(tasks.end(desk.conn, task, state, actor=desk.actor))
    if task.state != state:
        raise RefusedError(f"task {task.name!r} has already ended as {task.state}")
    desk.say(f"task {task.name!r} is already {state}")
    return _task(task)


def _find_task(desk: Desk, args: Namespace) -> TaskRow:
    tenant = tenant_asked_for(desk, args)
    found = tasks.named(desk.conn, args.task, tenant.id if tenant else None)
    if not found:
        raise RefusedError(f"no task {args.task!r}: see 'deploy/admin task list'")
    if len(found) > 1:
        raise RefusedError(f"{len(found)} tenants have a task {args.task!r}: add --tenant")
    return found[0]


def _task(task: TaskRow) -> Data:
    return {
        "tenant": task.tenant,
        "task": task.name,
        "task_type": task.task_type,
        "state": task.state,
        "opened_at": shown_time(task.opened_at),
        "ended_at": shown_time(task.ended_at),
        "requests": task.requests,
        "attempts": task.attempts,
        "prompt_tokens": task.prompt_tokens,
        "completion_tokens": task.completion_tokens,
        "cost_usd": plain(task.cost_usd),
    }
