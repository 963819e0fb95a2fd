"""A migrated database for each test, cloned from one that was migrated once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from plugins.admin import cli
from plugins.ledger.database import connect_engine
from plugins.ledger.migrate import migrate
from plugins.setup.postgres import EmbeddedPostgres
from tests.ledger.settled import Shop, shop

TEMPLATE = "ledger_template"
_numbers = count(1)


def address(postgres: EmbeddedPostgres, database: str) -> str:
    return postgres.url.rpartition("/")[0] + f"/{database}"


@pytest.fixture(scope="session", name="ledger_template")
def _ledger_template(postgres: EmbeddedPostgres) -> str:
    with psycopg.connect(postgres.url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {TEMPLATE}")
    migrate(address(postgres, TEMPLATE), lambda line: None)
    return TEMPLATE


@pytest.fixture(name="ledger_url")
def _ledger_url(postgres: EmbeddedPostgres, ledger_template: str) -> Iterator[str]:
    """The address of a migrated database of this test's own, without any row."""
    name = f"ledger_{next(_numbers)}"
    with psycopg.connect(postgres.url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {ledger_template}")
        try:
            yield address(postgres, name)
        finally:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(name="engine")
def _engine(ledger_url: str) -> Engine:
    return connect_engine(ledger_url)


@dataclass(frozen=True)
class Ran:
    """What one command did; `data` is its stdout read as JSON, None when there was none."""

    code: int
    data: Any
    out: str
    err: str


@pytest.fixture(name="office")
def _office(
    ledger_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Run an admin command with `--json` on this test's database."""
    monkeypatch.setenv("LEDGER_URL", ledger_url)

    def run(*argv: str) -> Ran:
        code = cli.main([*argv, "--json"])
        out, err = capsys.readouterr()
        return Ran(code, json.loads(out) if out else None, out, err)

    return run


@pytest.fixture(name="open_shop")
def _open_shop(ledger_url: str) -> Iterator[Callable[..., Shop]]:
    """Make tenants that call."""
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        yield lambda name="acme", zone="UTC": shop(conn, ledger_url, name, zone)
