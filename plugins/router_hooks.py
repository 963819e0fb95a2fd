"""Door: no attempt leaves for a deployment outside the plan, by whatever road.

Each hook fails closed: a call without our marker, an unknown deployment, or a fault of our
own stops the call inside LiteLLM, before a byte has left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from plugins import inflight, runtime, seam
from plugins.inflight import InFlight
from plugins.policy.refusal import Refusal, gateway_error, invalid_api_key, model_not_allowed
from plugins.telemetry import metrics

log = logging.getLogger("wicketgate.attempts")

running = runtime.get()


class RouterHooks(CustomLogger):
    # LiteLLM calls a pre-call hook only if it stands in the class's own namespace.
    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: Any
    ) -> dict[str, Any]:
        """Put the planned models in place of whatever LiteLLM read from the request."""
        with metrics.timed("pre"), seam.client_safe("routing"):
            entry = inflight.current()
            if entry is None or entry.call is None or entry.plan is None:
                raise _stop(entry, invalid_api_key())
            if data.get("model") != entry.call.model:
                raise _stop(entry, model_not_allowed())
            seam.mark(data, entry.id)
            data["model"], *fallbacks = entry.plan.models
            seam.set_fallbacks(data, fallbacks)
            seam.dont_wait_for(data, running.without_a_choice(entry.plan))
            return data

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[Any],
        messages: list[Any] | None,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: Any = None,
    ) -> list[dict[str, Any]]:
        """Keep the deployments of the plan; LiteLLM goes on to the next group when none is left."""
        with metrics.timed("filter"), seam.client_safe("routing"):
            entry = inflight.by_marker(seam.marker_of(request_kwargs or {}))
            if entry is None or entry.plan is None:
                raise _stop(inflight.current(), gateway_error())
            allowed = entry.plan.deployments
            usable = [d for d in healthy_deployments if seam.listed_id(d) in allowed]
            # A second try at the deployment that just failed, while another one is free,
            # would be a coin toss of LiteLLM's.
            prepared = entry.account.prepared
            if prepared is not None:
                # The first attempt was paid for at this one.
                chosen = [d for d in usable if seam.listed_id(d) == prepared.priced.deployment.id]
                if chosen:
                    return chosen
            tried = {deployment.id for deployment in entry.attempts.values()}
            return [d for d in usable if seam.listed_id(d) not in tried] or usable

    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: Any
    ) -> dict[str, Any]:
        """Let one attempt leave, pinned to its deployment's own destination and account."""
        with metrics.timed("attempt"), seam.client_safe("routing"):
            entry = inflight.by_marker(seam.marker_of(kwargs))
            identifier = seam.deployment_id(kwargs)
            deployment = running.deployments.get(identifier or "")
            trusted = running.trusted.get(identifier or "")
            if entry is None or entry.plan is None or entry.call is None:
                raise _stop(entry, invalid_api_key())
            if deployment is None or trusted is None:
                raise _stop(entry, gateway_error())
            key = running.entrance.still_valid(entry.key)
            if isinstance(key, Refusal):
                raise _stop(entry, key)
            turned_away = key.tenant.grants.turned_away(deployment, entry.call.data_class)
            if deployment.id not in entry.plan.deployments or turned_away is not None:
                raise _stop(entry, model_not_allowed())
            entry.attempts[seam.attempt_of(kwargs)] = deployment
            entry.served_by = deployment
            return seam.pin(kwargs, trusted)

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Mapping[str, object],
        exception: Exception,
        call_type: Any,
        fallback_depth: int | None = None,
    ) -> None:
        """Keep what a provider's failure was: LiteLLM may report only that nobody is left."""
        with metrics.timed("failure"), seam.client_safe("failure"):
            entry = inflight.by_marker(seam.marker_of(request_data))
            if entry is not None:
                entry.failure = seam.whose_fault(exception, sent=True)
                _tell(entry, entry.failure, exception)

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: Any,
        traceback_str: str | None = None,
    ) -> None:
        """Note whose fault a failed call is; the gate answers with it."""
        with metrics.timed("failure"), seam.client_safe("failure"):
            entry = inflight.current()
            if entry is not None and entry.refusal is None:
                known = entry.failure if seam.nobody_left(original_exception) else None
                sent = bool(entry.attempts)
                entry.refusal = known or seam.whose_fault(original_exception, sent=sent)
                if entry.failure is None:  # no single attempt has told of itself
                    _tell(entry, entry.refusal, original_exception)


def _tell(entry: InFlight, refusal: Refusal, error: Exception) -> None:
    """Log a failed attempt for the operator: where, what kind of error, which request."""
    served = entry.served_by
    where = f"{served.id} ({served.provider}, {served.region})" if served else "no deployment"
    log.warning(
        "%s: %s: %s; attempt %d of request %s",
        refusal.code,
        where,
        seam.kinds(error),
        len(entry.attempts),
        entry.id,
    )


def _stop(entry: InFlight | None, refusal: Refusal) -> seam.Stop:
    if entry is not None:
        entry.refusal = refusal
    return seam.Stop()


router_hooks = RouterHooks()
