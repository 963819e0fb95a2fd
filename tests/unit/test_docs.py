"""The README names everything a reader may meet."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from plugins.policy.call import Limits
from plugins.policy.refusal import CODES
from plugins.policy.routes import GOVERNED

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SOURCES = [*ROOT.glob("plugins/**/*.py"), *ROOT.glob("deploy/*")]


@pytest.mark.parametrize("code", CODES)
def test_every_refusal_is_explained(code: str) -> None:
    """A code that a client may see has a row with its status."""
    assert f"| `{code}` | {CODES[code][0]} |" in README


@pytest.mark.parametrize("path", sorted({route.path for route in GOVERNED.values()}))
def test_every_path_is_named(path: str) -> None:
    """A path that is served is in the list."""
    assert path in README


@pytest.mark.parametrize("setting", [field.name for field in dataclasses.fields(Limits)])
def test_every_default_is_explained(setting: str) -> None:
    """A setting has a row with its default."""
    default = getattr(Limits(), setting)
    shown = str(default).lower()

    assert f"| `wicketgate.defaults.{setting}` | `{shown}` |" in README


def test_every_environment_variable_is_named() -> None:
    """What the code reads from the environment is in the README."""
    used = set()
    for path in SOURCES:
        if path.is_file() and path.suffix in {".py", ""}:
            used.update(re.findall(r"\bWICKETGATE_[A-Z_]+\b", path.read_text(encoding="utf-8")))

    assert sorted(name for name in used if name not in README) == []


def test_every_metric_is_named() -> None:
    """What can be scraped is in the README."""
    source = (ROOT / "plugins/telemetry/metrics.py").read_text(encoding="utf-8")

    for name in re.findall(r'"(wicketgate_[a-z_]+)"', source):
        assert f"`{name}`" in README
