"""The books of one worker: what is set aside before an attempt, and how it is settled after.

Every attempt that holds something is settled exactly once: by the hook that sees its end, or
at the latest when the gate is done with its request. What the database cannot take at that
moment is kept and tried again; what a dead worker left, another one sweeps.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

from plugins import logs
from plugins.account import Account, Attempt, Priced
from plugins.ledger import prices
from plugins.ledger.database import LedgerUnavailable, connect_engine, transaction
from plugins.ledger.holds import (
    UNREACHABLE,
    AsyncLedger,
    Clerk,
    HoldResult,
    Settled,
    Settlement,
    Wanted,
)
from plugins.policy import money
from plugins.policy.call import Call
from plugins.policy.grants import Deployment
from plugins.policy.identity import Key
from plugins.policy.refusal import Refusal, budget_refusal, ledger_unavailable
from plugins.policy.usage import NOTHING, Counted, Usage
from plugins.policy.work import Hosting, TaskType
from plugins.telemetry import metrics

log = logging.getLogger("wicketgate.books")

#: Seconds between two rounds of the clerk: late settlements, leases, the sweep.
ROUND = 2.0
#: Rounds between two looks at what rarely changes.
SELDOM = 300
#: A hold whose outcome is unknown may still arrive for so long, in seconds.
DOUBT = 3.0


class Books:
    def __init__(
        self,
        ledger_url: str,
        priced: Mapping[str, Priced],
        task_types: Mapping[str, TaskType],
        hosting: Mapping[str, Hosting],
        floor: int,
    ) -> None:
        self._url = ledger_url
        self._ledger = AsyncLedger(ledger_url)
        self._priced = priced
        self._types = task_types
        self._hosting = hosting
        self._floor = floor
        self._price_ids: dict[str, int] = {}
        self._open: dict[UUID, float] = {}  # id -> when it was held, by the monotonic clock
        self._late: deque[tuple[float, Settlement]] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wicketgate-clerk", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def count(self, account: Account, deployment_id: str) -> Counted:
        return await account.count(self._priced[deployment_id])

    async def hold(
        self, request_id: str, key: Key, call: Call, account: Account, deployment: Deployment
    ) -> Attempt | Refusal:
        """Set aside what an attempt at *deployment* may use, or say why it may not be made.

        A refusal of which the budget says "downgrade" is told apart by `Refusal.go_on`.
        """
        priced = self._priced[deployment.id]
        price_id = self._price_ids.get(deployment.id)
        if price_id is None:  # no revision is written down yet: the database was never reached
            return ledger_unavailable()
        prompt = await account.count(priced)
        wanted = self._wanted(request_id, key, call, account, priced, price_id, prompt)
        self._open[wanted.id] = time.monotonic()
        try:
            result = await self._ledger.hold(wanted)
            if result.verdict == "again":
                result = await self._ledger.hold(wanted)
        except LedgerUnavailable:
            self._void_later(wanted.id)
            return ledger_unavailable()
        except BaseException:
            self._void_later(wanted.id)
            raise
        if result.verdict != "held":
            self._open.pop(wanted.id, None)
            return budget_refusal(
                result.verdict, result.scope, result.unit, result.window_kind, result.resets_at,
                datetime.now(UTC), go_on=result.on_exhausted == "downgrade",
            )  # fmt: skip
        return self._admitted(wanted, result, account, priced, prompt, call)

    def _admitted(
        self,
        wanted: Wanted,
        result: HoldResult,
        account: Account,
        priced: Priced,
        prompt: Counted,
        call: Call,
    ) -> Attempt:
        account.models.add(priced.deployment.model)
        account.providers.add(priced.deployment.provider)
        self._hear(account, result.left_usd, result.left_tokens)
        cap = result.cap or 0
        account.clamped = cap < (wanted.cap if call.output_cap is None else call.output_cap)
        return Attempt(wanted.id, priced, prompt, cap, wanted.outputs, result.held_usd)

    def _wanted(
        self,
        request_id: str,
        key: Key,
        call: Call,
        account: Account,
        priced: Priced,
        price_id: int,
        prompt: Counted,
    ) -> Wanted:
        kind = self._types.get(call.task_type or "")
        budget = kind.budget if kind else None
        usd_left, tokens_left = call.max_cost, None
        if usd_left is not None:
            usd_left -= account.spent()
        if budget is not None and call.task_id is None:
            # A call that names no task is a piece of work by itself.
            if budget.unit == "usd":
                usd_left = min(usd_left or budget.limit, budget.limit - account.spent())
            else:
                tokens_left = int(budget.limit)
        return Wanted(
            id=uuid4(),
            request_id=UUID(request_id),
            number=1 + sum(not attempt.void for attempt in account.attempts.values()),
            first_of_model=priced.deployment.model not in account.models,
            first_of_provider=priced.deployment.provider not in account.providers,
            tenant_id=UUID(key.tenant.id),
            key_id=UUID(key.id),
            task=call.task_id,
            task_type=call.task_type,
            task_budget=None
            if budget is None
            else {
                "unit": budget.unit,
                "limit": money.plain(budget.limit),
                "window": budget.window,
                "on_exhausted": budget.on_exhausted,
            },
            model_requested=call.model,
            price_id=price_id,
            stream=call.stream,
            prompt_tokens=prompt.tokens,
            writes_cache=call.writes_cache,
            outputs=call.outputs,
            cap=_cap(call, priced, kind),
            floor=max(self._floor, call.reasoning_budget + 1 if call.reasoning_budget else 0),
            usd_left=usd_left,
            tokens_left=tokens_left,
        )

    def _hear(self, account: Account, usd: Decimal | None, tokens: Decimal | None) -> None:
        for unit, left in (("usd", usd), ("tokens", tokens)):
            if left is not None:
                account.left[unit] = left

    def end_task_soon(self, key: Key, call: Call) -> None:
        """Give the task of *call* the outcome it names, if it names one."""
        if call.task_id is not None and call.task_outcome is not None:
            self._keep(self._end_task(UUID(key.tenant.id), call.task_id, call.task_outcome))

    async def _end_task(self, tenant_id: UUID, name: str, outcome: str) -> None:
        try:
            await self._ledger.end_task(tenant_id, name, outcome)
        except LedgerUnavailable:
            log.warning("a task's outcome could not be written down; 'deploy/admin task' can")

    async def standing(self, key: Key) -> dict[str, Any]:
        """Return the budgets that cover *key* and what its tenant has spent today.

        Raises:
            LedgerUnavailable: If the database does not answer.
        """
        budgets, today = await self._ledger.standing(UUID(key.tenant.id), UUID(key.id))
        return {"budgets": budgets, "today": today}

    # Settling

    async def settle(
        self, account: Account, attempt: Attempt, status: str, error: str | None = None,
        *, billed: bool = True,
    ) -> None:  # fmt: skip
        """Close *attempt* once; a second call does nothing.

        Args:
            billed: False when the provider answered that it will not do it: then nothing was
                used, whatever was set aside.
        """
        if attempt.settled:
            return
        attempt.settled = True
        task = self._keep(self._close(account, attempt, status, error, billed))
        # The caller may be cancelled; the write goes on.
        await asyncio.shield(task)

    def settle_soon(
        self, account: Account, attempt: Attempt, status: str, error: str | None = None
    ) -> None:
        """Close *attempt* without waiting: for where nothing may be awaited any more."""
        if not attempt.settled:
            self._keep(self.settle(account, attempt, status, error))

    def void_soon(self, attempt: Attempt) -> None:
        """Give back what an attempt holds that was never sent."""
        if not attempt.settled:
            attempt.settled = attempt.void = True
            self._keep(self._write(Settlement(attempt.id, "void"), None))

    async def _close(
        self, account: Account, attempt: Attempt, status: str, error: str | None, billed: bool
    ) -> None:
        usage = await self._used(attempt, status, billed)
        settlement = self._settlement(attempt, usage, status, error)
        attempt.cost = settlement.cost
        await self._write(settlement, account)

    @staticmethod
    def _settlement(attempt: Attempt, usage: Usage, status: str, error: str | None) -> Settlement:
        priced = attempt.priced
        computed = money.cost(usage, priced.price)
        reported = usage.reported if priced.reports_charges else None
        flag = usage.flag
        if usage.source == "provider" and usage.completion > attempt.cap * attempt.outputs:
            flag = flag or "over_cap"
        if usage.source == "provider" and usage.prompt > attempt.prompt.tokens:
            flag = flag or "over_count"
        return Settlement(
            attempt.id,
            status,
            usage.source,
            flag,
            usage.prompt,
            usage.cached,
            usage.cache_write,
            usage.completion,
            usage.reasoning,
            computed if reported is None else reported,
            computed,
            reported,
            error,
            attempt.meter.first_byte_at,
        )

    async def _used(self, attempt: Attempt, status: str, billed: bool) -> Usage:
        """Return what was used: as reported, else as what came lets us estimate."""
        if not billed:
            return NOTHING
        meter = attempt.meter
        usage = meter.usage()
        if usage is not None and (status == "ok" or usage.completion >= meter.pieces):
            return usage
        estimated = await attempt.priced.counter.estimate(meter.texts())
        completion = max(estimated, meter.pieces)
        prompt = usage.prompt if usage is not None and usage.prompt else attempt.prompt.tokens
        flag = "no_usage" if status == "ok" else "broken_off"
        if prompt == attempt.prompt.tokens and not attempt.prompt.exact:
            flag += ", prompt_bound"
        return Usage(prompt, completion, source="estimated", flag=flag)

    async def _write(self, settlement: Settlement, account: Account | None) -> None:
        try:
            settled = await self._ledger.settle(settlement)
        except LedgerUnavailable:
            self._late.append((time.monotonic(), settlement))
            return
        except Exception as error:
            logs.fault(log, "a settlement", error)
            self._late.append((time.monotonic(), settlement))
            return
        self._open.pop(settlement.id, None)
        self._told(settlement, settled)
        if account is not None:
            self._hear(account, settled.left_usd, settled.left_tokens)

    def _told(self, settlement: Settlement, settled: Settled) -> None:
        if not settled.settled and settlement.status != "void":
            metrics.settlement_faults.labels("already_closed").inc()
            log.error("attempt %s was closed before it was settled", settlement.id)
        for warning in settled.warnings or ():
            metrics.budget_warnings.labels(str(warning["level"]), warning["unit"]).inc()
            log.warning(
                "budget %s (%s each %s) has used %d %% of its limit",
                *(warning["budget"], warning["unit"], warning["window"], warning["level"]),
            )

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _void_later(self, identifier: UUID) -> None:
        """Undo a hold of which nobody knows whether it stands, once it can no longer arrive."""
        self._late.append((time.monotonic() + DOUBT, Settlement(identifier, "void")))

    # The clerk's thread

    def _run(self) -> None:
        clerk: Clerk | None = None
        turn = 0
        while not self._stopping.is_set():
            try:
                if clerk is None:
                    clerk = Clerk(self._url)
                    self._register(clerk)
                self._round(clerk, seldom=turn % SELDOM == 0)
                turn += 1
            except Exception as error:
                # The keeper tells when the database is away; a driver's words name hosts.
                if not isinstance(error, UNREACHABLE):
                    logs.fault(log, "the clerk", error)
                if clerk is not None:
                    clerk.close()
                clerk = None
            self._stopping.wait(ROUND if clerk is not None else ROUND / 4)

    def _register(self, clerk: Clerk) -> None:
        for identifier, priced in self._priced.items():
            d, p = priced.deployment, priced.price
            self._price_ids[identifier] = clerk.price(
                identifier, d.model, d.provider, d.region, p.input, p.output, p.cached,
                p.cache_write,
            )  # fmt: skip

        machines = [
            prices.HostingRow(name, machine.usd_per_hour, machine.tokens_per_second)
            for name, machine in self._hosting.items()
        ]
        with transaction(connect_engine(self._url)) as conn:
            prices.record_hosting(conn, machines)

    def _round(self, clerk: Clerk, *, seldom: bool) -> None:
        self._catch_up(clerk)
        overdue = time.monotonic() - 10
        clerk.renew([i for i, held_at in list(self._open.items()) if held_at < overdue])
        swept = clerk.sweep()
        if swept:
            metrics.swept.inc(swept)
            log.warning("closed %d attempts that a worker left open", swept)
        metrics.leaked_holds.set(clerk.leaked())
        if seldom:
            clerk.make_partitions()

    def _catch_up(self, clerk: Clerk) -> None:
        for _ in range(len(self._late)):
            due, settlement = self._late.popleft()
            if due > time.monotonic():
                self._late.append((due, settlement))
                continue
            try:
                settled = clerk.settle(settlement)
            except Exception:
                self._late.append((due, settlement))
                raise
            self._open.pop(settlement.id, None)
            self._told(settlement, settled)


def _cap(call: Call, priced: Priced, kind: TaskType | None) -> int:
    """Return the cap to ask for: the caller's, or the type's default, within the deployment's."""
    if not call.generates:
        return 0
    wanted = call.output_cap or (kind.max_tokens if kind else None) or priced.max_output_tokens
    return min(wanted, priced.max_output_tokens)
