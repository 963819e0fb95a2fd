"""Prometheus metrics, right over several workers, on a port of their own.

Every label value comes from a bounded set: tenants and models that are configured, our own
codes, our own hook names. What a caller typed is never a label.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import start_http_server as start_exposition
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

log = logging.getLogger("wicketgate.metrics")

OTHER = "other"
NOBODY = "none"
#: Seconds until a worker tries again to take over the metrics port.
TAKEOVER_INTERVAL = 2.0

requests = Counter(
    "wicketgate_requests_total",
    "Calls answered, by outcome: `ok`, or the code of the refusal or failure.",
    ["tenant", "model", "provider", "code"],
)
refusals = Counter("wicketgate_refusals_total", "Calls refused or failed, by code.", ["code"])
snapshot_age = Gauge(
    "wicketgate_snapshot_age_seconds",
    "Seconds since the database last confirmed keys and grants; the oldest worker's.",
    multiprocess_mode="livemax",
)
hook_seconds = Histogram(
    "wicketgate_hook_seconds",
    "Our own time in one hook.",
    ["hook"],
    buckets=(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0),
)

leaked_holds = Gauge(
    "wicketgate_leaked_holds",
    "Budget windows that hold something else than their open attempts do; must be 0.",
    multiprocess_mode="livemax",
)
settlement_faults = Counter(
    "wicketgate_settlement_faults_total",
    "Attempts that somebody else had closed before they were settled; must be 0.",
    ["kind"],
)
swept = Counter("wicketgate_swept_attempts_total", "Attempts of dead workers closed at their hold.")
budget_warnings = Counter(
    "wicketgate_budget_warnings_total",
    "Budgets that passed a warn level (80 or 95 % of the limit), once for each window.",
    ["level", "unit"],
)


@contextmanager
def timed(hook: str) -> Iterator[None]:
    """Measure the block as time of *hook*, one of our own names."""
    started = time.perf_counter()
    try:
        yield
    finally:
        hook_seconds.labels(hook).observe(time.perf_counter() - started)


def answered(tenant: str | None, model: str | None, provider: str | None, code: str) -> None:
    """Count one answered call; None stands for what is unknown or not ours to name."""
    requests.labels(tenant or NOBODY, model or OTHER, provider or NOBODY, code).inc()
    if code != "ok":
        refusals.labels(code).inc()


def serve(host: str, port: int) -> None:
    """Serve `/metrics` from this worker, or take over when the worker that does ends.

    With `PROMETHEUS_MULTIPROC_DIR` set the figures are those of all workers together.
    """
    threading.Thread(
        target=_serve_when_free, args=(host, port), name="wicketgate-metrics", daemon=True
    ).start()


def _serve_when_free(host: str, port: int) -> None:
    while True:
        try:
            start_exposition(port, addr=host, registry=_registry())
        except OSError:
            time.sleep(TAKEOVER_INTERVAL)
        else:
            log.info("metrics on http://%s:%d/metrics", host, port)
            break
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    while folder:
        _forget_the_dead(Path(folder))
        time.sleep(TAKEOVER_INTERVAL)


def _forget_the_dead(folder: Path) -> None:
    """Drop the gauges of workers that ended; their counters still count."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = file.stem.rpartition("_")[2]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            mark_process_dead(int(pid), str(folder))  # type: ignore[no-untyped-call]
        except (ValueError, PermissionError):
            continue


def _registry() -> CollectorRegistry:
    if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry
