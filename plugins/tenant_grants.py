"""Door: who is calling, and which models a listing may show.

The gate has identified the key before LiteLLM sees the request; this door takes its word for
nothing but the identity, and asks the snapshot again.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import UserAPIKeyAuth

from plugins import inflight, runtime, seam
from plugins.policy.refusal import Refusal, invalid_api_key
from plugins.telemetry import metrics

running = runtime.get()  # at import: without the startup hook LiteLLM must not start


async def authenticate(request: Request, api_key: str | None) -> UserAPIKeyAuth:
    """Return who is calling; refuse whatever did not come through the gate."""
    with metrics.timed("auth"), seam.client_safe("authentication"):
        entry = inflight.current()
        if entry is None:
            raise seam.refuse(invalid_api_key())
        key = running.entrance.still_valid(entry.key)
        if isinstance(key, Refusal):
            entry.refusal = key
            raise seam.refuse(key)
        models = running.models_of(key)
        if entry.plan is not None and entry.call is not None:
            # What was asked for is granted, even where a cheaper model answers in its place.
            models = [entry.call.model, *entry.plan.models]
        return seam.authenticated(key, models, [request.url.path])


class TenantGrants(CustomLogger):
    async def async_filter_listed_models(
        self, user_api_key_dict: UserAPIKeyAuth, model_names: Sequence[str]
    ) -> Sequence[str]:
        entry = inflight.current()
        if entry is None:
            return []
        usable = set(running.models_of(entry.key))
        return [name for name in model_names if name in usable]


tenant_grants = TenantGrants()
