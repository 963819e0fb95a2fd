"""Kinds of work, and what an hour of a machine of our own costs."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """What a new task of a type starts with.

    Attributes:
        unit: `usd` or `tokens`.

        window: `day`, `week`, `month` or `total`.

        on_exhausted: `refuse` or `downgrade`.
    """

    unit: str
    limit: Decimal
    window: str = "total"
    on_exhausted: str = "refuse"


@dataclass(frozen=True, slots=True)
class TaskType:
    """A kind of work, named in the configuration.

    Attributes:
        priority: `high`, `normal` or `low`.

        max_tokens: The output cap of a call that names none; None: the deployment's own.
    """

    name: str
    priority: str = "normal"
    max_tokens: int | None = None
    budget: TaskBudget | None = None


@dataclass(frozen=True, slots=True)
class Hosting:
    """What a machine of our own costs and does.

    Attributes:
        tokens_per_second: Output tokens it was measured to make; None: not measured.
    """

    usd_per_hour: Decimal
    tokens_per_second: Decimal | None = None
