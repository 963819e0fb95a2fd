"""What a tenant was granted, and whether a deployment lies within it.

A tenant holds three sets: model names, providers, regions. A deployment may serve a call
only if all three match. An empty set, and an empty label, match nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,63}")
LABEL_RULE = "a label has up to 64 letters, digits and ._/:@-, the first a letter or digit"


class Dimension(StrEnum):
    """What a grant speaks of; also the reason a deployment is turned away for."""

    MODEL = "model"
    PROVIDER = "provider"
    REGION = "region"


class DataClass(StrEnum):
    """How far the data of one call may travel; a call may only tighten it."""

    ANY = "any"
    LOCAL_ONLY = "local-only"


@dataclass(frozen=True, slots=True)
class Deployment:
    """One `model_list` entry, as far as grants are concerned.

    Attributes:
        id: `model_info.id`, unique over the configuration.

        model: The public `model_name` it serves.

        provider: Who runs it (`anthropic`, `llama.cpp`, …); "" when unlabelled.

        region: Where data goes (`eu`, `us`, `onprem`, …); "" when unlabelled.

        local: True for an engine of our own (`model_info.engine` is set).
    """

    id: str
    model: str
    provider: str
    region: str
    local: bool = False


@dataclass(frozen=True, slots=True)
class Grants:
    models: frozenset[str] = field(default_factory=frozenset)
    providers: frozenset[str] = field(default_factory=frozenset)
    regions: frozenset[str] = field(default_factory=frozenset)

    def allows_model(self, name: str) -> bool:
        return any(model_matches(pattern, name) for pattern in self.models)

    def turned_away(self, deployment: Deployment, data_class: DataClass) -> str | None:
        """Return why *deployment* may not serve: `model`, `provider`, `region`, `data_class`.

        None means that it may.
        """
        if not self.allows_model(deployment.model):
            return Dimension.MODEL.value
        if not label_matches(self.providers, deployment.provider):
            return Dimension.PROVIDER.value
        if not label_matches(self.regions, deployment.region):
            return Dimension.REGION.value
        if data_class is DataClass.LOCAL_ONLY and not deployment.local:
            return "data_class"
        return None

    def allowed(self, deployments: Iterable[Deployment], data_class: DataClass) -> list[Deployment]:
        return [d for d in deployments if self.turned_away(d, data_class) is None]


def model_matches(pattern: str, name: str) -> bool:
    """Match an exact name, or `prefix/*` against any longer name under that prefix.

    Letters count as written, no name is resolved to another, and `local/*` matches neither
    `localx/a` nor `local/` nor `local`.
    """
    if pattern.endswith("/*"):
        prefix = pattern[:-1]
        return name.startswith(prefix) and len(name) > len(prefix)
    return name != "" and pattern == name


def label_matches(granted: frozenset[str], label: str) -> bool:
    """Match a provider or region label; `*` grants every label, but never a missing one."""
    return label != "" and (label in granted or "*" in granted)


def is_label(text: str) -> bool:
    """Tell whether a deployment's provider or region may be called *text*."""
    return LABEL.fullmatch(text) is not None


def is_model_name(text: str) -> bool:
    """Tell whether `model_name` may be *text*: no spaces, commas or stars, and not empty."""
    return text != "" and re.search(r"[*,\s]", text) is None


def pattern_problem(dimension: Dimension, pattern: str) -> str | None:
    """Return what is wrong with a grant that could never match anything, or None."""
    if dimension is Dimension.MODEL:
        known = is_model_name(pattern.removesuffix("/*"))
        return None if known else "not a model name or a 'prefix/*' pattern"
    return None if pattern == "*" or is_label(pattern) else "not a label"
