"""The snapshot: it moves with every change, and is whole at each revision."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import Connection, Engine

from plugins.ledger import grants, keys, snapshot, tenants
from plugins.ledger.database import LedgerBusyError, connect_engine, transaction
from plugins.ledger.keys import KeyRow, NewKey
from plugins.ledger.tenants import TenantRow
from plugins.policy.grants import Dimension, Grants
from plugins.policy.identity import Key, Snapshot, Tenant, digest, display_prefix, new_secret

DAY = timedelta(days=1)


@pytest.fixture(name="conn")
def _conn(engine: Engine) -> Iterator[Connection]:
    with transaction(engine) as conn:
        yield conn


def fresh_key(*, expires_at: datetime | None = None, alias: str | None = None) -> NewKey:
    secret = new_secret(secrets.token_bytes)
    return NewKey(digest(secret), display_prefix(secret), alias, expires_at)


def issued(conn: Connection, tenant: TenantRow, new: NewKey) -> KeyRow:
    return keys.issue(conn, tenant, new, actor="t")


TENANT = "INSERT INTO wicketgate.tenants (name, zone) VALUES ('first', 'UTC')"
KEY = """INSERT INTO wicketgate.keys (tenant_id, digest, prefix)
    SELECT id, sha256('x'), 'sk-wg-aaaaaa' FROM wicketgate.tenants"""
GRANT = """INSERT INTO wicketgate.grants (tenant_id, dimension, pattern)
    SELECT id, 'model', 'm' FROM wicketgate.tenants"""


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO wicketgate.tenants (name, zone) VALUES ('second', 'UTC')",
        "UPDATE wicketgate.tenants SET disabled_at = now()",
        KEY.replace("'x'", "'y'"),
        "UPDATE wicketgate.keys SET blocked_at = now()",
        "DELETE FROM wicketgate.keys",
        "TRUNCATE wicketgate.keys CASCADE",
        GRANT.replace("'m'", "'n'"),
        "UPDATE wicketgate.grants SET pattern = 'o'",
        "DELETE FROM wicketgate.grants",
        "TRUNCATE wicketgate.grants",
    ],
)
def test_every_change_moves_the_revision_and_tells(ledger_url: str, statement: str) -> None:
    """Any statement, ours or one typed into psql, moves the revision and announces it."""
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        for prepare in (TENANT, KEY, GRANT):
            conn.execute(prepare)
        before = revision(conn)
        conn.execute("LISTEN wicketgate_snapshot")
        conn.execute(statement)
        after = revision(conn)
        told = [int(notice.payload) for notice in conn.notifies(timeout=5, stop_after=1)]

    assert after > before
    assert told == list(range(before + 1, after + 1))


def revision(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT value FROM wicketgate.snapshot_revision").fetchone()
    assert row is not None
    return int(row[0])


def test_a_change_that_is_rolled_back_moves_nothing(engine: Engine) -> None:
    """The revision belongs to the transaction of the change."""
    with engine.connect() as conn:
        tenants.add(conn, "acme", "UTC", actor="t")
        assert snapshot.read_revision(conn) == 1
        conn.rollback()
        assert snapshot.read_revision(conn) == 0


def test_an_empty_ledger(conn: Connection) -> None:
    """Without tenants there is a snapshot all the same: it knows nobody."""
    assert snapshot.load(conn) == Snapshot(0, {}, {})


def test_load_equals_what_was_written(conn: Connection) -> None:
    """Every field of a tenant, its grants and its keys arrives unchanged."""
    name = "Klinik Zürich 東京 🚑 \\ \" ' {a,b}"
    row = tenants.add(conn, name, "Europe/Zurich", actor="t")
    patterns = [(Dimension.MODEL, "local/*"), (Dimension.MODEL, 'a,"b\\{}'), (Dimension.MODEL, "ü")]
    patterns += [(Dimension.PROVIDER, "*"), (Dimension.REGION, "eu"), (Dimension.REGION, "NULL")]
    grants.add(conn, row, patterns, actor="t")
    expires_at = datetime(2099, 12, 31, 23, 59, 59, 123450, UTC)
    plain, dated = fresh_key(), fresh_key(expires_at=expires_at, alias=name)
    first, second = issued(conn, row, plain), issued(conn, row, dated)
    keys.block(conn, second, actor="t")
    bare = tenants.disable(conn, tenants.add(conn, "bare", "UTC", actor="t"), actor="t")

    loaded = snapshot.load(conn)

    tenant = Tenant(
        str(row.id),
        name,
        "Europe/Zurich",
        False,
        Grants(
            frozenset({"local/*", 'a,"b\\{}', "ü"}), frozenset({"*"}), frozenset({"eu", "NULL"})
        ),
    )
    assert loaded.tenants == {
        tenant.id: tenant,
        str(bare.id): Tenant(str(bare.id), "bare", "UTC", True, Grants()),
    }
    assert loaded.keys == {
        plain.digest: Key(str(first.id), plain.digest, plain.prefix, None, tenant, False, None),
        dated.digest: Key(
            str(second.id), dated.digest, dated.prefix, name, tenant, True, expires_at
        ),
    }
    assert loaded.revision == snapshot.read_revision(conn)


def test_which_keys_are_left_out(conn: Connection) -> None:
    """Revoked keys go at once, expired ones a day later; blocked ones stay."""
    tenant = tenants.add(conn, "acme", "UTC", actor="t")
    now = datetime.now(UTC)
    lately = issued(conn, tenant, fresh_key(expires_at=now - DAY + timedelta(minutes=1)))
    issued(conn, tenant, fresh_key(expires_at=now - DAY - timedelta(minutes=1)))
    blocked = keys.block(conn, issued(conn, tenant, fresh_key()), actor="t")
    keys.revoke(conn, issued(conn, tenant, fresh_key()), actor="t")

    loaded = snapshot.load(conn)

    assert {key.id for key in loaded.keys.values()} == {str(lately.id), str(blocked.id)}


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "10000-01-01", "1999-12-31"])
def test_a_time_python_cannot_hold_is_refused(ledger_url: str, moment: str) -> None:
    """One such row would keep every snapshot from loading."""
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        conn.execute(TENANT)
        conn.execute(KEY)
        with pytest.raises(psycopg.errors.CheckViolation):
            conn.execute("UPDATE wicketgate.keys SET expires_at = %s::timestamptz", [moment])


def test_a_second_change_waits_and_gives_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes come one after the other; one that never ends does not hold the next for ever."""
    monkeypatch.setattr(snapshot, "CHANGE_TIMEOUT", "100ms")
    with transaction(engine) as first:
        tenants.add(first, "acme", "UTC", actor="t")
        with pytest.raises(LedgerBusyError), transaction(engine) as second:
            snapshot.lock_for_change(second)


class Writer(threading.Thread):
    """Adds tenants until told to stop, and notes at which revision each was committed."""

    def __init__(self, url: str, name: str, stop: threading.Event) -> None:
        super().__init__()
        self.engine = connect_engine(url)
        self.prefix = name
        self.stop = stop
        self.committed: dict[str, int] = {}

    def run(self) -> None:
        for number in range(2000):
            if self.stop.is_set():
                return
            name = f"{self.prefix}-{number}"
            with transaction(self.engine) as conn:
                tenants.add(conn, name, "UTC", actor="t")
                moved = snapshot.read_revision(conn)
                time.sleep(0.002)  # the other writer and the reader come in between
            self.committed[name] = moved


@pytest.mark.parametrize("isolation", ["AUTOCOMMIT", "READ COMMITTED", "REPEATABLE READ"])
def test_a_snapshot_never_misses_what_its_revision_counts(ledger_url: str, isolation: str) -> None:
    """With two writers at work, a snapshot holds just the changes up to its revision."""
    stop = threading.Event()
    writers = [Writer(ledger_url, name, stop) for name in ("a", "b")]
    seen: dict[int, Snapshot] = {}
    for writer in writers:
        writer.start()
    with connect_engine(ledger_url).connect().execution_options(isolation_level=isolation) as conn:
        deadline = time.monotonic() + 60
        while len(seen) < 20 and time.monotonic() < deadline:
            loaded = snapshot.load(conn)
            conn.rollback()
            seen[loaded.revision] = loaded
    stop.set()
    for writer in writers:
        writer.join(30)

    committed = writers[0].committed | writers[1].committed
    assert sorted(committed.values()) == list(range(1, len(committed) + 1))
    assert len(seen) == 20
    for revision, loaded in seen.items():
        names = {tenant.name for tenant in loaded.tenants.values()}
        assert names == {name for name, moved in committed.items() if moved <= revision}
