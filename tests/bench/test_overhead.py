"""The measurement measures: answers are checked to the last token, and both proxies are real."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench import fake, load, overhead
from bench.load import Case, WrongAnswer
from bench.overhead import KINDS, Measured

ROOT = Path(__file__).parents[2]
PLAIN, STREAM = Case("plain", 0, 1), Case("stream", 200, 1)


def body_of(answer: bytes) -> bytes:
    """Return what a client reads from the fake's bytes."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head:
        return rest
    pieces = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        pieces.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(pieces)


def test_no_token_of_a_stream_is_like_the_one_before():
    tokens = fake.words(200)

    assert len(set(tokens)) == 200


@pytest.mark.parametrize("usage", [True, False], ids=["asked for usage", "did not ask"])
def test_the_fake_tells_usage_to_who_asks(usage):
    told = b'"completion_tokens": 200' in body_of(fake.stream(200, usage=usage))

    assert told is usage


def test_a_whole_answer_passes():
    load.check(PLAIN, 200, body_of(fake.plain()))
    load.check(STREAM, 200, body_of(fake.stream(200, usage=True)))


def test_a_missing_token_is_noticed():
    body = body_of(fake.stream(200, usage=True)).replace(b"w7x104 ", b"")

    with pytest.raises(WrongAnswer, match="199 tokens, not 200"):
        load.check(STREAM, 200, body)


def test_a_stream_without_its_end_is_noticed():
    body = body_of(fake.stream(200, usage=True)).replace(b"data: [DONE]\n\n", b"")

    with pytest.raises(WrongAnswer, match="no end"):
        load.check(STREAM, 200, body)


def test_a_refusal_is_no_answer():
    with pytest.raises(WrongAnswer, match="status 429"):
        load.check(PLAIN, 429, b"{}")


@pytest.mark.parametrize(
    ("ours", "reached"), [(1.0, True), (1.01, False)], ids=["equal reaches it", "more misses it"]
)
def test_the_verdict_is_the_ratio_of_all_rounds(ours, reached):
    bare = Measured(calls=100, cpu=1.0, taken=[0.01] * 100, rounds=[0.008, 0.012])
    gateway = Measured(calls=100, cpu=ours, taken=[0.012] * 100, rounds=[0.010, 0.010])

    row = overhead.row(KINDS[0], PLAIN, bare, gateway)

    assert (row["ratio"], row["reached"]) == (ours, reached)
    assert (row["ratio_low"], row["ratio_high"]) == (0.833, 1.25)
    assert row["added_median_ms"] == 2.0


def test_both_proxies_are_measured():
    """The real thing, with few calls: every cell of the table comes from a process that served."""
    found = told("--rounds", "1", "--scale", "0.05")

    assert [(row["call"], row["concurrent"]) for row in found["calls"]] == [
        (kind.name, concurrent) for kind in KINDS for concurrent in (1, 16)
    ]
    assert sum(row["bare_cpu_ms"] for row in found["calls"]) > 0
    assert sum(row["gateway_cpu_ms"] for row in found["calls"]) > 0
    assert sum(row["postgres_cpu_ms"] for row in found["calls"]) > 0


def test_hold_and_settle_stand_beside_pgbench():
    """The run itself refuses to give figures when the ledger lacks a cent."""
    found = told("--ledger", "--quick")

    assert [row["budgets"] for row in found["ledger"]] == ["hot", "spread"]
    assert all(row["ledger_calls_s"] > 0 and row["pgbench_calls_s"] > 0 for row in found["ledger"])


def told(*arguments: str) -> dict[str, list[dict[str, float]]]:
    done = subprocess.run(
        [ROOT / "bench" / "overhead", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
