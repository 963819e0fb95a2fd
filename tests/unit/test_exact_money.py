"""Money is exact from the file to the row: no binary fraction ever touches it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MONEY = [
    ROOT / "plugins" / "policy" / f"{name}.py" for name in ("money", "usage", "unit_cost", "work")
]
STORED = [
    ROOT / "plugins/ledger/tables.py",
    *sorted((ROOT / "migrations").rglob("*.sql")),
    *sorted((ROOT / "migrations/versions").glob("*.py")),
]


@pytest.mark.parametrize("path", MONEY, ids=lambda path: path.stem)
def test_no_float_where_money_is_decided(path: Path) -> None:
    """Neither a literal with a point nor a call of `float` stands in these modules."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    floats = [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Constant) and isinstance(node.value, float))
        or (isinstance(node, ast.Name) and node.id == "float")
    ]

    assert floats == []


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_no_float_where_money_is_stored(path: Path) -> None:
    """Amounts are `numeric` in every table and function."""
    found = re.findall(
        r"double precision|\breal\b|\bfloat\d*\b|\bFloat\b|\bDouble\b",
        path.read_text(encoding="utf-8"),
    )

    assert found == []
