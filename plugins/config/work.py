"""`wicketgate.task_types` and `wicketgate.hosting` as frozen values, with what is wrong in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from plugins.config.flaws import Flaw, Place, shown, unknown
from plugins.policy.grants import LABEL_RULE, is_label
from plugins.policy.work import Hosting, TaskBudget, TaskType

PRIORITIES = ("high", "normal", "low")
WINDOWS = ("day", "week", "month", "total")
ON_EXHAUSTED = ("refuse", "downgrade")


class Reader:
    """Reads a section, noting every flaw and going on."""

    def __init__(self, spelled: Mapping[Place, str]) -> None:
        self.flaws: list[Flaw] = []
        self._spelled = spelled

    def task_types(self, raw: Any, place: Place) -> dict[str, TaskType]:
        found = {}
        for name, section in self._sections(raw, place):
            at = (*place, name)
            if not is_label(name):
                self.flaws.append(Flaw(at, LABEL_RULE, name))
            self._known(at, section, ("priority", "max_tokens", "budget"))
            found[name] = TaskType(
                name,
                self._one_of(section, "priority", PRIORITIES, at, default="normal"),
                self._count(section, "max_tokens", at),
                self._budget(section.get("budget"), (*at, "budget")),
            )
        return found

    def hosting(self, raw: Any, place: Place, deployments: Collection[str]) -> dict[str, Hosting]:
        found = {}
        for name, section in self._sections(raw, place):
            at = (*place, name)
            if name not in deployments:
                self.flaws.append(Flaw(at, "expected the model_info.id of an entry", name))
            self._known(at, section, ("usd_per_hour", "tokens_per_second"))
            hourly = self._amount(section, "usd_per_hour", at)
            if hourly is None:
                rule = "expected US dollars, 0 or more"
                self.flaws.append(Flaw((*at, "usd_per_hour"), rule, "nothing"))
                continue
            found[name] = Hosting(hourly, self._amount(section, "tokens_per_second", at))
        return found

    def _budget(self, raw: Any, place: Place) -> TaskBudget | None:
        if raw is None:
            return None
        if not isinstance(raw, dict):
            self.flaws.append(Flaw(place, "expected a mapping", shown(raw)))
            return None
        self._known(place, raw, ("usd", "tokens", "window", "on_exhausted"))
        units = [unit for unit in ("usd", "tokens") if raw.get(unit) is not None]
        if len(units) != 1:
            self.flaws.append(Flaw(place, "expected one of usd, tokens", ", ".join(units)))
            return None
        limit = self._amount(raw, units[0], place)
        return TaskBudget(
            units[0],
            Decimal(0) if limit is None else limit,
            self._one_of(raw, "window", WINDOWS, place, default="total"),
            self._one_of(raw, "on_exhausted", ON_EXHAUSTED, place, default="refuse"),
        )

    def _sections(self, raw: Any, place: Place) -> list[tuple[str, dict[str, Any]]]:
        sections = []
        for name, section in raw.items() if isinstance(raw, dict) else ():
            if isinstance(section, dict):
                sections.append((name, section))
            else:
                self.flaws.append(Flaw((*place, name), "expected a mapping", shown(section)))
        return sections

    def _known(self, place: Place, raw: Mapping[str, Any], names: tuple[str, ...]) -> None:
        self.flaws.extend(unknown(place, raw, names))

    def _one_of(
        self, raw: Mapping[str, Any], name: str, known: tuple[str, ...], place: Place, default: str
    ) -> str:
        value = raw.get(name, default)
        if value not in known:
            rule = f"expected one of {', '.join(known)}"
            self.flaws.append(Flaw((*place, name), rule, shown(value)))
            return default
        return str(value)

    def _count(self, raw: Mapping[str, Any], name: str, place: Place) -> int | None:
        value = raw.get(name)
        if value is not None and (type(value) is not int or value < 1):
            rule = "expected a whole number above 0"
            self.flaws.append(Flaw((*place, name), rule, shown(value)))
            return None
        return value

    def _amount(self, raw: Mapping[str, Any], name: str, place: Place) -> Decimal | None:
        """Return an amount exactly as it is written."""
        value = raw.get(name)
        if value is None:
            return None
        try:
            amount = Decimal(self._spelled.get((*place, name), str(value)))
        except InvalidOperation:
            amount = Decimal("NaN")
        if isinstance(value, bool) or not amount.is_finite() or amount < 0:
            self.flaws.append(Flaw((*place, name), "expected a number, 0 or more", shown(value)))
            return None
        return amount
