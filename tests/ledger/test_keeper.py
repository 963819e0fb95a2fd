"""The keeper's promise: what it hands out was confirmed within two seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from plugins.keeper import MAX_AGE, Keeper
from plugins.ledger.migrate import migrate

BOUND = 2.0  # seconds


@pytest.fixture(name="url")
def _url(fresh_database: str) -> str:
    migrate(fresh_database, lambda line: None)
    return fresh_database


@pytest.fixture(name="keeper")
def _keeper(url: str) -> Iterator[Keeper]:
    keeper = Keeper(url, on_tick=lambda age: None)
    keeper.start()
    yield keeper
    keeper.stop()


def within(seconds: float, holds: Callable[[], bool]) -> float:
    """Return after how many seconds *holds* came true."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < seconds
        time.sleep(0.005)
    return time.monotonic() - started


def tenants(keeper: Keeper) -> set[str]:
    snapshot = keeper.current()
    return set() if snapshot is None else {t.name for t in snapshot.tenants.values()}


def add_tenant(url: str, name: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO wicketgate.tenants (name, zone) VALUES (%s, 'UTC')", [name])


def test_a_change_arrives_by_notification(keeper: Keeper, url: str) -> None:
    """It does not wait for the next poll."""
    within(5, lambda: keeper.current() is not None)

    add_tenant(url, "acme")

    within(BOUND, lambda: tenants(keeper) == {"acme"})


def test_a_lost_notification_is_made_up_for(keeper: Keeper, url: str) -> None:
    """The revision is looked at twice a second, whatever was or was not announced."""
    within(5, lambda: keeper.current() is not None)
    with psycopg.connect(url) as connection:  # this table has no trigger: nothing is announced
        connection.execute("UPDATE wicketgate.snapshot_revision SET value = 4711")

    within(BOUND, lambda: getattr(keeper.current(), "revision", None) == 4711)


def test_a_broken_connection_ends_trust_at_once_and_is_renewed(keeper: Keeper, url: str) -> None:
    """Between the loss and the next confirmation nothing is handed out."""
    within(5, lambda: keeper.current() is not None)

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    within(MAX_AGE, lambda: keeper.current() is None or keeper.age() < 0.2)
    add_tenant(url, "later")

    within(BOUND + 1, lambda: tenants(keeper) == {"later"})


def test_nothing_is_handed_out_without_a_database() -> None:
    """A keeper that never reached the database has no snapshot, and keeps trying."""
    ages: list[float] = []
    keeper = Keeper("postgresql://nobody@127.0.0.1:1/none", on_tick=ages.append)
    keeper.start()
    within(5, lambda: len(ages) >= 2)
    keeper.stop()

    assert keeper.current() is None
    assert ages[0] == float("inf")


def test_a_database_without_our_tables_is_told_once(
    fresh_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the remedy, not the same trouble four times a second."""
    logging.getLogger("wicketgate").propagate = True
    keeper = Keeper(fresh_database, on_tick=lambda age: None)
    with caplog.at_level("INFO", logger="wicketgate.keeper"):
        keeper.start()
        time.sleep(1.2)
        migrate(fresh_database, lambda line: None)
        within(5, lambda: keeper.current() is not None)
        keeper.stop()

    told = [r.getMessage() for r in caplog.records if r.name == "wicketgate.keeper"]
    assert told == [
        "The ledger database has no Wicketgate tables yet. Run: deploy/admin db migrate",
        "the ledger answers again",
    ]
