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
from sqlalchemy import Connection, Engine, text

from plugins.ledger import snapshot as snapshots
from plugins.ledger.database import connect_engine
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
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wicketgate-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    def current(self) -> Snapshot | None:
        """Return the snapshot to decide on; None while the database cannot confirm one."""
        return self._snapshot if self.age() <= MAX_AGE else None

    def age(self) -> float:
        """Return the seconds since the database last confirmed the snapshot."""
        return time.monotonic() - self._confirmed_at

    def _run(self) -> None:
        reachable = True
        while not self._stopping.is_set():
            try:
                engine = connect_engine(self._url)
                try:
                    with engine.connect().execution_options(
                        isolation_level="AUTOCOMMIT"
                    ) as connection:
                        connection.execute(text(f"LISTEN {SNAPSHOT_CHANNEL}"))
                        if not reachable:
                            log.info("the ledger answers again")
                        reachable = True
                        self._follow(engine, connection)
                finally:
                    engine.dispose()
            except Exception as error:
                # The class only: a driver's text names hosts and users.
                if reachable:
                    log.warning("the ledger is not reachable (%s)", type(error).__name__)
                reachable = False
                self._confirmed_at = float("-inf")
                self._on_tick(self.age())
                self._stopping.wait(RETRY_INTERVAL)

    def _follow(self, engine: Engine, connection: Connection) -> None:
        driver = connection.connection.driver_connection
        if not isinstance(driver, PsycopgConnection):
            raise TypeError("the keeper listens through psycopg")
        while not self._stopping.is_set():
            asked_at = time.monotonic()
            revision = snapshots.read_revision(connection)
            if self._snapshot is None or revision != self._snapshot.revision:
                with engine.connect() as loading:
                    self._snapshot = snapshots.load(loading)
            # The moment of the question, not of the answer: the older bound is the true one.
            self._confirmed_at = asked_at
            self._on_tick(self.age())
            for _ in driver.notifies(timeout=POLL_INTERVAL, stop_after=1):
                pass
