"""Compare the CPU and the time of a call through bare LiteLLM and through the gateway.

Both proxies run at once and only one is driven, in rounds A B B A, so that a slow moment of the
machine meets both. The figure that counts is CPU time, as the operating system has it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import ledger, load, servers
from bench.load import Case
from bench.servers import Server, cpu_of_tree
from plugins.setup.postgres import EmbeddedPostgres

CONCURRENT = (1, 16)
IDLE_SECONDS = 5.0
SETTLE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of call: `calls` in one round, and what the ratio is meant to be at most."""

    name: str
    tokens: int
    calls: int
    target: float


KINDS = (
    Kind("plain", 0, 200, 1.00),
    Kind("stream-20", 20, 60, 1.03),
    Kind("stream-200", 200, 16, 1.03),
)


@dataclass(slots=True)
class Measured:
    """What one proxy did in all rounds of a case. CPU in seconds."""

    calls: int = 0
    cpu: float = 0.0
    database_cpu: float = 0.0
    taken: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)  # CPU of a call in each round

    @property
    def cpu_ms(self) -> float:
        return 1000 * self.cpu / self.calls


def row(kind: Kind, case: Case, bare: Measured, ours: Measured) -> dict[str, Any]:
    """Return one line of the table; times in milliseconds.

    `ratio_low` and `ratio_high` are of the single pairs of rounds: how far apart they lie tells
    how far to trust the ratio.
    """
    ratio = ours.cpu_ms / bare.cpu_ms
    pairs = [mine / other for mine, other in zip(ours.rounds, bare.rounds, strict=True)]
    return {
        "call": kind.name,
        "concurrent": case.concurrent,
        "calls": ours.calls,
        "bare_cpu_ms": round(bare.cpu_ms, 2),
        "gateway_cpu_ms": round(ours.cpu_ms, 2),
        "ratio": round(ratio, 3),
        "ratio_low": round(min(pairs), 3),
        "ratio_high": round(max(pairs), 3),
        "target": kind.target,
        "reached": ratio <= kind.target,
        "postgres_cpu_ms": round(1000 * ours.database_cpu / ours.calls, 2),
        "added_median_ms": round(1000 * (_median(ours) - _median(bare)), 2),
        "added_p99_ms": round(1000 * (_p99(ours) - _p99(bare)), 2),
    }


def _median(measured: Measured) -> float:
    return statistics.median(measured.taken)


def _p99(measured: Measured) -> float:
    ordered = sorted(measured.taken)
    return ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]


def measure(
    bare: Server, ours: Server, postgres_pid: int, rounds: int, scale: float
) -> list[dict[str, Any]]:
    """Drive both through every case, *rounds* rounds each, and return the table."""
    table = []
    for kind in KINDS:
        calls = max(round(kind.calls * scale), 1)
        for concurrent in CONCURRENT:
            case = Case(f"{kind.name} at {concurrent}", kind.tokens, concurrent)
            found = one_case(bare, ours, case, postgres_pid, rounds, max(calls, concurrent))
            table.append(row(kind, case, *found))
            _say(f"{case.name}: CPU {table[-1]['ratio']} of bare LiteLLM's")
    return table


def one_case(
    bare: Server, ours: Server, case: Case, postgres_pid: int, rounds: int, calls: int
) -> tuple[Measured, Measured]:
    found = Measured(), Measured()
    both = list(zip((bare, ours), found, strict=True))
    for server, _ in both:
        asyncio.run(load.run(server.port, server.key, case, max(calls // 4, case.concurrent)))
    for turn in range(rounds):
        for server, measured in both if turn % 2 == 0 else reversed(both):
            _one_round(server, case, calls, postgres_pid, measured)
    return found


def _one_round(server: Server, case: Case, calls: int, postgres_pid: int, into: Measured) -> None:
    before, database_before = server.cpu(), cpu_of_tree(postgres_pid)
    into.taken += asyncio.run(load.run(server.port, server.key, case, calls))
    # What an answer leaves to be done, such as its settlement, belongs to it.
    time.sleep(SETTLE_SECONDS)
    used = server.cpu() - before
    into.cpu += used
    into.rounds.append(used / calls)
    into.database_cpu += cpu_of_tree(postgres_pid) - database_before
    into.calls += calls


def idle(*server: Server) -> dict[str, float]:
    """Return what share of a core each uses while nobody calls, in percent."""
    before = [one.cpu() for one in server]
    time.sleep(IDLE_SECONDS)
    return {
        one.name: round(100 * (one.cpu() - was) / IDLE_SECONDS, 1)
        for one, was in zip(server, before, strict=True)
    }


def shown(table: Sequence[dict[str, Any]]) -> str:
    """Return the table for people to read."""
    if not table:
        return ""
    names = list(table[0])
    cells = [[_cell(line[name]) for name in names] for line in table]
    widths = [max(len(n), *(len(line[i]) for line in cells)) for i, n in enumerate(names)]
    lines = [names, *cells]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _cell(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    found: dict[str, Any] = {"machine": f"{os.cpu_count()} cores, {platform.machine()}"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wicketgate-bench-")))
        folder.chmod(0o711)  # the database's own user passes through
        postgres = stack.enter_context(EmbeddedPostgres(folder / "data"))
        if postgres.pid is None:
            raise RuntimeError("the embedded PostgreSQL ended")
        servers.admin(postgres.url, "db", "migrate")
        if options.ledger:
            _say("hold and settle, beside pgbench")
            seconds = 2.0 if options.quick else 5.0
            found["ledger"] = ledger.measure(postgres.url, postgres.pid, seconds)
        else:
            found |= _calls(stack, folder, postgres.url, postgres.pid, options)
    print(json.dumps(found, indent=1) if options.json else text(found))
    return 0


def _calls(
    stack: ExitStack, folder: Path, ledger_url: str, postgres_pid: int, options: argparse.Namespace
) -> dict[str, Any]:
    port = stack.enter_context(servers.provider())
    _say("starting bare LiteLLM, then the gateway (15-30 s each)")
    bare = stack.enter_context(servers.bare(folder, port))
    ours = stack.enter_context(servers.gateway(folder, port, ledger_url))
    calls = measure(bare, ours, postgres_pid, options.rounds, options.scale)
    return {"calls": calls, "idle_percent": idle(bare, ours)}


def text(found: dict[str, Any]) -> str:
    """Return everything found for people to read."""
    if "ledger" in found:
        return shown(found["ledger"])
    at_rest = ", ".join(f"{name} {share}%" for name, share in found["idle_percent"].items())
    return (
        f"{shown(found['calls'])}\n\nCPU in milliseconds of a call; Postgres beside, not in the "
        f"ratio. Of a core, while idle: {at_rest}."
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/overhead", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer calls and rounds")
    parser.add_argument("--ledger", action="store_true", help="hold and settle per second instead")
    parser.add_argument("--json", action="store_true", help="the table as data")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="rounds of each (default 4)")
    parser.add_argument("--scale", type=_share, metavar="X", help="times as many calls in a round")
    options = parser.parse_args(arguments)
    rounds, scale = (2, 0.25) if options.quick else (4, 1.0)
    options.rounds = options.rounds or rounds
    options.scale = options.scale or scale
    return options


def _positive(value: str) -> int:
    if (number := int(value)) < 1:
        raise ValueError(value)
    return number


def _share(value: str) -> float:
    if not 0 < (number := float(value)) < 1000:
        raise ValueError(value)
    return number


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
