"""Which model groups may serve a call, in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from plugins.policy.call import Call
from plugins.policy.grants import Deployment, Grants
from plugins.policy.refusal import Refusal, model_not_allowed


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every deployment, by public model name, and the configured fallbacks between them.

    Attributes:
        context: Deployment id -> the most prompt tokens it takes; absent when unknown.
    """

    groups: Mapping[str, tuple[Deployment, ...]]
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    context: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Plan:
    """The model groups to try, and the only deployments that may be called.

    Attributes:
        models: The group asked for, then its allowed fallbacks; never empty.

        deployments: Ids of every deployment that may take part.
    """

    models: tuple[str, ...]
    deployments: frozenset[str]


def make_plan(
    call: Call,
    grants: Grants,
    catalog: Catalog,
    prompt_tokens: Mapping[str, int] = MappingProxyType({}),
) -> Plan | Refusal:
    """Return who may serve *call*, or why nobody may.

    Args:
        prompt_tokens: Deployment id -> what the prompt has there, at the least; one that is
            not named has room for it.
    """
    if call.model not in catalog.groups or not grants.allows_model(call.model):
        return model_not_allowed()
    wanted = (call.model, *catalog.fallbacks.get(call.model, ()))
    allowed = {
        model: grants.allowed(catalog.groups.get(model, ()), call.data_class) for model in wanted
    }
    if not allowed[call.model]:
        return Refusal(
            "region_not_allowed",
            "No deployment of this model lies within the providers, regions and data class "
            "that this call may use.",
            param="model",
        )
    fitting = {
        model: [d for d in deployments if _fits(d, catalog, prompt_tokens)]
        for model, deployments in allowed.items()
    }
    models = tuple(model for model in wanted if fitting[model])
    if not models:
        return context_length_exceeded()
    return Plan(models, frozenset(d.id for model in models for d in fitting[model]))


def context_length_exceeded() -> Refusal:
    return Refusal(
        "context_length_exceeded",
        "The prompt is longer than the context of every model this call may use.",
        param="messages",
    )


def _fits(deployment: Deployment, catalog: Catalog, prompt_tokens: Mapping[str, int]) -> bool:
    limit = catalog.context.get(deployment.id)
    return limit is None or prompt_tokens.get(deployment.id, 0) <= limit
