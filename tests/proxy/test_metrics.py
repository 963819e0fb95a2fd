"""What can be scraped counts every call once, and nothing that a caller typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.proxy.calls import chat
from tests.proxy.conftest import NewTenant
from tests.proxy.harness import Proxy
from tests.proxy.launch import free_port
from tests.proxy.models import Providers

ROOT = Path(__file__).parents[2]

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(proxy: Proxy) -> Series:
    text = httpx.get(f"http://127.0.0.1:{proxy.metrics_port}/metrics", timeout=10).text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("wicketgate_")
    }


def total(series: Series, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for (n, found), value in series.items() if n == name and wanted <= found)


def test_labels_do_not_grow_with_what_callers_type(
    p: Proxy, providers: Providers, new_tenant: NewTenant
) -> None:
    """Misspelt models, users, unknown keys and task names share a few series (O-28)."""
    tenant = new_tenant("metered", models=["local-a"], regions=["onprem"])
    p.post("/v1/chat/completions", tenant.key, chat("local-a"))
    p.post("/v1/chat/completions", tenant.key, chat("junk"))
    p.post("/v1/chat/completions", "sk-wg-unknown", chat("local-a"))
    before = scrape(p)

    for number in range(50):
        p.post("/v1/chat/completions", tenant.key, chat(f"junk-{number:04}"))
        p.post("/v1/chat/completions", tenant.key, chat("local-a", user=f"u-{number:04}"))
        p.post("/v1/chat/completions", f"sk-wg-unknown-{number}", chat("local-a"))
        headers = {"x-task-type": f"task-{number}"}
        p.post("/v1/chat/completions", tenant.key, chat("local-a"), headers=headers)
    after = scrape(p)

    def grown(code: str, **labels: str) -> float:
        name = "wicketgate_requests_total"
        return total(after, name, code=code, **labels) - total(before, name, code=code, **labels)

    mine = {"tenant": tenant.name}
    assert grown("ok", model="local-a", provider="llama.cpp", **mine) == 100
    assert grown("model_not_allowed", model="other", **mine) == 50
    assert grown("invalid_api_key", tenant="none") == 50
    assert after.keys() == before.keys()
    assert not re.search(r"junk|u-0|task-|sk-wg", repr(after))


def test_the_snapshots_age_is_told(p: Proxy) -> None:
    """An operator sees how fresh keys and grants are."""
    assert 0 <= total(scrape(p), "wicketgate_snapshot_age_seconds") < 1


def test_our_own_time_is_measured_by_hook(
    p: Proxy, providers: Providers, new_tenant: NewTenant
) -> None:
    """Each hook of an answered call is observed once."""
    tenant = new_tenant("timed", models=["local-a"], regions=["onprem"])
    before = scrape(p)
    p.post("/v1/chat/completions", tenant.key, chat("local-a"))
    after = scrape(p)

    name = "wicketgate_hook_seconds_count"
    counted = {
        hook: total(after, name, hook=hook) - total(before, name, hook=hook)
        for hook in ("gate", "auth", "pre", "filter", "attempt")
    }
    assert counted == dict.fromkeys(counted, 1)


WORKER = """
import sys, time
from plugins.telemetry import metrics
metrics.answered("acme", "m", "a", "ok")
metrics.snapshot_age.set(float(sys.argv[1]))
metrics.serve("127.0.0.1", int(sys.argv[2]))
print("up", flush=True)
time.sleep(60)
"""


def test_several_workers_are_summed_and_one_takes_over(tmp_path: Path) -> None:
    """The port serves the figures of all workers, also when the one that held it ends."""
    port = free_port()
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    workers = []
    for age in ("0.1", "0.4"):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, age, str(port)],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == "up\n"
        workers.append(worker)
    try:
        both = read(port)
        workers[0].kill()
        workers[0].wait()
        still = read(port)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()

    assert 'wicketgate_requests_total{code="ok",model="m",provider="a",tenant="acme"} 2.0' in both
    assert "wicketgate_snapshot_age_seconds 0.4" in both
    assert 'wicketgate_requests_total{code="ok",model="m",provider="a",tenant="acme"} 2.0' in still


def read(port: int) -> str:
    deadline = time.monotonic() + 20
    while True:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
        except httpx.HTTPError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
