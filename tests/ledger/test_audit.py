"""The audit log: append-only, and one row for each change."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import Engine

from plugins.ledger import audit, tenants
from plugins.ledger.database import transaction


@pytest.mark.parametrize(
    ("statement", "verb"),
    [
        ("UPDATE wicketgate.audit_log SET actor = 'someone else'", "UPDATE"),
        ("DELETE FROM wicketgate.audit_log", "DELETE"),
        ("DELETE FROM wicketgate.audit_log WHERE false", "DELETE"),
        ("TRUNCATE wicketgate.audit_log", "TRUNCATE"),
    ],
)
def test_append_only(ledger_url: str, engine: Engine, statement: str, verb: str) -> None:
    """What was written stays, also for the role that owns the table."""
    with transaction(engine) as conn:
        audit.record(conn, "ada", "key block", {"key_id": "1"})

    with (
        psycopg.connect(ledger_url) as conn,
        pytest.raises(psycopg.errors.RestrictViolation) as refused,
    ):
        conn.execute(statement)

    assert refused.value.diag.message_primary == (
        f"wicketgate.audit_log is append-only: {verb} is refused"
    )
    with transaction(engine) as conn:
        assert [entry.actor for entry in audit.entries(conn, 10)] == ["ada"]


def test_entries_are_newest_first_and_bounded(engine: Engine) -> None:
    """The last change is the first to be read."""
    with transaction(engine) as conn:
        for number in range(3):
            audit.record(conn, "ada", "test", {"number": number})
        found = audit.entries(conn, 2)

    assert [entry.subject for entry in found] == [{"number": 2}, {"number": 1}]


def test_a_change_that_fails_leaves_no_row(engine: Engine) -> None:
    """Change and row are one transaction."""

    def fail() -> None:
        with transaction(engine) as conn:
            tenants.add(conn, "acme", "UTC", actor="ada")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    with transaction(engine) as conn:
        assert audit.entries(conn, 10) == []
        assert tenants.every(conn) == []
