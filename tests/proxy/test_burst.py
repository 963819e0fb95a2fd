"""A thousand calls at once over two replicas, through a budget with room for 137."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from tests.fakes.script import Fault, Script, answers, breaks, fails
from tests.proxy.calls import chat
from tests.proxy.launch import eventually

CALLS, ROOM = 1000, 137
CAP = 100
PRICE = Decimal("0.00001")
ANSWER_LIMIT = 240.0  # seconds for the whole burst
STAY, LEAVE = "stay", "leave"


async def call(port: int, key: str, body: dict[str, Any], manner: str) -> int | None:
    """Send one request on a connection of its own; return its status, None if there is none."""
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
        "Connection: close\r\n\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None
    try:
        writer.write(head.encode() + payload)
        await writer.drain()
        if manner == LEAVE:
            await asyncio.sleep(random.uniform(0.2, 3))
            return None
        answer = await reader.read()
        return int(answer.split(b" ", 2)[1]) if answer else None
    except OSError:
        return None
    finally:
        writer.close()


def burst(ports: Iterable[int], key: str, bodies: list[tuple[dict[str, Any], str]]) -> Counter[Any]:
    targets = list(ports)

    async def everyone() -> list[int | None]:
        calls = (
            call(targets[number % len(targets)], key, body, manner)
            for number, (body, manner) in enumerate(bodies)
        )
        async with asyncio.timeout(ANSWER_LIMIT):
            return await asyncio.gather(*calls)

    return Counter(asyncio.run(everyone()))


def test_exactly_137_get_through(p, q, providers, new_tenant, treasury):
    """The provider saw 137, and the books, the rows and its own bill agree to the last digit."""
    acme = new_tenant("acme", models=["out-only"], regions=["eu"])
    budget = treasury.budget(acme, str(ROOM * CAP * PRICE))
    providers.a.always(answers(7, CAP))

    seen = burst([p.port, q.port], acme.key, [(chat("out-only", max_tokens=CAP), STAY)] * CALLS)

    assert seen == {200: ROOM, 429: CALLS - ROOM}
    assert len(providers.a.journal) == ROOM
    rows = treasury.rows(acme, ROOM)
    bill = len(providers.a.journal) * CAP * PRICE
    assert treasury.standing(budget) == (bill, 0)
    assert sum(row["cost_usd"] for row in rows) == bill
    assert len(rows) == ROOM


def test_nothing_leaks_through_failures_and_clients_that_leave(
    p, q, providers, new_tenant, treasury
):
    """Broken answers, retries and hang-ups: never over the limit, a row each, nothing held."""
    acme = new_tenant("acme", models=["out-only"], regions=["eu"])
    limit = 60 * CAP * PRICE
    budget = treasury.budget(acme, str(limit))
    chance = random.Random(7)
    providers.a.always(answers(7, CAP))
    providers.a.script(
        *chance.choices(
            [
                answers(7, CAP),
                fails(500),
                breaks(Fault.HANGS_UP),
                breaks(Fault.NO_CHUNK),
                Script(usage=(7, CAP), cut_after=1),
                Script(usage=(7, CAP), delay=1.0),
            ],
            k=400,
        )
    )
    bodies = [
        (
            chat("out-only", max_tokens=CAP, stream=chance.random() < 0.5),
            LEAVE if chance.random() < 0.2 else STAY,
        )
        for _ in range(400)
    ]

    burst([p.port, q.port], acme.key, bodies)

    eventually(lambda: treasury.standing(budget)[1] == 0, 60)
    rows = treasury.rows(acme, 1)
    used, held = treasury.standing(budget)
    assert held == 0
    assert used <= limit
    assert used == sum(row["cost_usd"] for row in rows)
    # A client that left at the very moment of sending has a row, whether or not it was sent.
    left = [row for row in rows if row["status"] == "cancelled"]
    assert len(rows) - len(left) <= len(providers.a.journal) <= len(rows)
    assert all(row["status"] != "abandoned" for row in rows)


def test_a_replica_that_is_killed_loses_nothing(p, start, providers, new_tenant, treasury):
    """What it held is closed by the other one, at the held amount, and no row is missing."""
    acme = new_tenant("acme", models=["out-only"], regions=["eu"])
    budget = treasury.budget(acme, str(20 * CAP * PRICE))
    victim = start("victim")
    victim.wait_until(200)
    providers.a.always(Script(hold=True, usage=(7, CAP)))

    async def some() -> None:
        calls = [
            asyncio.create_task(call(victim.port, acme.key, chat("out-only", max_tokens=CAP), STAY))
            for _ in range(5)
        ]
        await asyncio.to_thread(eventually, lambda: len(providers.a.journal) == 5)
        victim.process.kill()
        await asyncio.gather(*calls)

    asyncio.run(some())
    assert treasury.standing(budget) == (0, 5 * CAP * PRICE)
    treasury.ask("UPDATE wicketgate.open_attempts SET lease_until = now() - interval '1 s'")

    rows = treasury.rows(acme, 5)

    assert [row["status"] for row in rows] == ["abandoned"] * 5
    assert treasury.standing(budget) == (5 * CAP * PRICE, 0)
    providers.a.always(answers(7, CAP))
    assert p.post("/v1/chat/completions", acme.key, chat("out-only", max_tokens=CAP)).is_success
