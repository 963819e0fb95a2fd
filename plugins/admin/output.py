"""Plain data as text for people, and as CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
#: A spreadsheet takes text that begins so for a formula, and names come from callers.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def lines(data: Any) -> list[str]:
    if isinstance(data, list):
        return _table(data)
    found = []
    for name, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            found += [f"{name}:", *(f"  {line}" for line in _table(value))]
        elif isinstance(value, dict):
            found += [f"{name}:", *(f"  {line}" for line in lines(value))]
        else:
            found.append(f"{name}: {_cell(value)}")
    return found


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return *rows* with a heading; nothing at all when there is none."""
    file = io.StringIO(newline="")
    if rows:
        writer = csv.writer(file)
        writer.writerow(rows[0])
        writer.writerows([_csv_cell(value) for value in row.values()] for row in rows)
    return file.getvalue()


def _csv_cell(value: Any) -> str:
    text = "" if value is None else _cell(value)
    harmless = NUMBER.fullmatch(text) or not text.startswith(FORMULA_STARTS)
    return text if harmless else f"'{text}"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _cell(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
