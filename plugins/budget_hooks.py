"""Door: nothing is sent before it is paid for, and each attempt is settled once.

The first attempt was set aside by the gate; a retry or a fallback is set aside here, at the
deployment really called. What was held is what goes upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from plugins import inflight, runtime, seam
from plugins.account import Attempt
from plugins.inflight import InFlight
from plugins.policy.refusal import Refusal, gateway_error
from plugins.telemetry import metrics

running = runtime.get()


class BudgetHooks(CustomLogger):
    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: Any
    ) -> dict[str, Any]:
        """Let an attempt leave with the cap that was set aside for it, and with no other."""
        with metrics.timed("hold"), seam.client_safe("hold"):
            entry = inflight.by_marker(seam.marker_of(kwargs))
            if entry is None or entry.call is None or entry.served_by is None:
                raise _stop(entry, gateway_error())
            number = seam.attempt_of(kwargs)
            attempt = entry.account.attempts.get(number)
            if attempt is None:
                attempt = await self._set_aside(entry, number)
            capped = seam.cap(kwargs, attempt.cap, generates=entry.call.generates)
            return seam.ask_for_usage(capped, call_type)

    async def _set_aside(self, entry: InFlight, number: tuple[object, ...]) -> Attempt:
        account, deployment = entry.account, entry.served_by
        if entry.call is None or deployment is None:
            raise _stop(entry, gateway_error())
        earlier = account.current()
        if earlier is not None and not earlier.settled:
            # A stream that failed before its first chunk is tried again without a word.
            await running.books.settle(account, earlier, "failed", "upstream_error")
        prepared, account.prepared = account.prepared, None
        if prepared is not None and prepared.priced.deployment.id == deployment.id:
            attempt: Attempt | Refusal = prepared
        else:
            if prepared is not None:
                running.books.void_soon(prepared)
            if len(account.attempts) >= running.max_attempts:
                raise self._give_up(entry, number, gateway_error())
            attempt = await running.books.hold(entry.id, entry.key, entry.call, account, deployment)
        if isinstance(attempt, Refusal):
            raise self._give_up(entry, number, attempt)
        attempt.sent = True
        account.attempts[number] = attempt
        return attempt

    @staticmethod
    def _give_up(entry: InFlight, number: tuple[object, ...], refusal: Refusal) -> seam.Stop:
        """End the call: what its earlier attempts failed of is told, if there were any."""
        entry.attempts.pop(number, None)
        entry.served_by = next(reversed(entry.attempts.values()), None)
        return _stop(entry, entry.failure or refusal)

    async def async_post_call_success_deployment_hook(
        self, request_data: Mapping[str, object], response: Any, call_type: Any
    ) -> None:
        """Settle a whole answer; a stream is settled at its end."""
        with metrics.timed("settle"), seam.client_safe("settlement"):
            entry, attempt = _attempt(request_data)
            if entry is None or attempt is None or entry.call is None or entry.call.stream:
                return
            attempt.meter.see(response)
            await running.books.settle(entry.account, attempt, "ok")

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Mapping[str, object],
        exception: Exception,
        call_type: Any,
        fallback_depth: int | None = None,
    ) -> None:
        """Settle an attempt that failed, before the next one asks for room."""
        with metrics.timed("settle"), seam.client_safe("settlement"):
            entry, attempt = _attempt(request_data)
            if entry is None or attempt is None:
                return
            if seam.never_sent(exception):
                running.books.void_soon(attempt)
                return
            code = seam.whose_fault(exception, sent=True).code
            await running.books.settle(
                entry.account, attempt, "failed", code, billed=seam.may_be_billed(exception)
            )

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: dict[str, Any]
    ) -> AsyncIterator[Any]:
        """Read a stream's usage as it passes, and settle it however it ends."""
        entry = inflight.current() or inflight.by_marker(seam.marker_of(request_data))
        attempt = entry.account.current() if entry is not None else None
        if entry is None or attempt is None:
            return
        meter, account = attempt.meter, entry.account
        asked = (account.body.get("stream_options") or {}).get("include_usage") is True
        source = None
        try:
            async for piece in response:
                if meter.first_byte_at is None:
                    source = seam.usage_source(response)
                meter.see(piece)
                if asked or not seam.only_usage(piece):
                    yield piece
        except (asyncio.CancelledError, GeneratorExit):
            status = "partial" if meter.pieces else "cancelled"
            running.books.settle_soon(account, attempt, status, "client_left")
            raise
        except Exception:
            status = "partial" if meter.pieces else "failed"
            await running.books.settle(account, attempt, status, "upstream_error")
            raise
        if seam.usage_is_a_guess(source):
            meter.forget_usage()
        await running.books.settle(account, attempt, "ok")


def _attempt(request_data: Mapping[str, Any]) -> tuple[InFlight | None, Attempt | None]:
    entry = inflight.by_marker(seam.marker_of(request_data))
    if entry is None:
        return None, None
    exact = entry.account.attempts.get(seam.attempt_of(request_data))
    return entry, exact or entry.account.current()


def _stop(entry: InFlight | None, refusal: Refusal) -> seam.Stop:
    if entry is not None:
        entry.refusal = refusal
    return seam.Stop()


budget_hooks = BudgetHooks()
