"""Keeps the snapshot of keys and grants fresh, in a thread of its own.

A thread, not a task: a worker whose event loop is busy with a thousand streams must still
learn within two seconds that a key was blocked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from psycopg import Connection as PsycopgConnection
from sqlalchemy import Connection, text

from plugins.ledger import snapshot as snapshots
from plugins.ledger.database import (
    LedgerNotMigratedError,
    LedgerRefusedError,
    connect_engine,
    ledger_errors,
)
from plugins.ledger.tables import SNAPSHOT_CHANNEL
from plugins.policy.identity import Snapshot

log = logging.getLogger("wicketgate.keeper")

#: Seconds between two looks at the revision, when no notification came.
POLL_INTERVAL = 0.5
#: A snapshot that was last confirmed longer ago than this many seconds decides nothing:
#: what was blocked two seconds ago is blocked here, or the answer is `ledger_unavailable`.
MAX_AGE = 1.8
#: Seconds between two attempts to reach a database that is down.
RETRY_INTERVAL = 0.25


class Keeper:
    def __init__(self, ledger_url: str, on_tick: Callable[[float], None]) -> None:
        """Start nothing yet; *on_tick* is told the snapshot's age in seconds, twice a second."""
        self._url = ledger_url
        self._on_tick = on_tick
        self._snapshot: Snapshot | None = None
        self._confirmed_at = float("-inf")
        self._trouble: str | None = None
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"wicketgate-{name}", daemon=True)
            for name, target in (("keeper", self._run), ("age", self._tick))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=5)

    def current(self) -> Snapshot | None:
        """Return the snapshot to decide on; None while the database cannot confirm one."""
        return self._snapshot if self.age() <= MAX_AGE else None

    def age(self) -> float:
        """Return the seconds since the database last confirmed the snapshot."""
        return time.monotonic() - self._confirmed_at

    def _tick(self) -> None:
        """Tell the age by a clock of its own: it grows while the other thread hangs."""
        while not self._stopping.wait(POLL_INTERVAL):
            self._on_tick(self.age())

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with ledger_errors():
                    self._listen()
            except Exception as error:
                self._confirmed_at = float("-inf")
                self._tell(error)
                self._stopping.wait(RETRY_INTERVAL)

    def _tell(self, error: Exception) -> None:
        """Log a trouble once, in words of ours: a driver's text names hosts and users."""
        if isinstance(error, LedgerNotMigratedError):
            told = f"{error} Run: deploy/admin db migrate"
        elif isinstance(error, LedgerRefusedError):
            told = str(error)
        else:
            told = f"the ledger is not reachable ({type(error.__cause__ or error).__name__})"
        if told != self._trouble:
            log.warning("%s", told)
        self._trouble = told

    def _listen(self) -> None:
        engine = connect_engine(self._url)
        try:
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text(f"LISTEN {SNAPSHOT_CHANNEL}"))
                driver = connection.connection.driver_connection
                if not isinstance(driver, PsycopgConnection):
                    raise TypeError("the keeper listens through psycopg")
                while not self._stopping.is_set():
                    self._confirm(connection)
                    for _ in driver.notifies(timeout=POLL_INTERVAL, stop_after=1):
                        pass
        finally:
            engine.dispose()

    def _confirm(self, connection: Connection) -> None:
        asked_at = time.monotonic()
        revision = snapshots.read_revision(connection)
        if self._snapshot is None or revision != self._snapshot.revision:
            self._snapshot = snapshots.load(connection)
        # The moment of the question, not of the answer: the older bound is the true one.
        self._confirmed_at = asked_at
        if self._trouble is not None:
            log.info("the ledger answers again")
            self._trouble = None
