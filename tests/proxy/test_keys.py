"""Keys and grants change under traffic, on both replicas at once. Cases O-22 and O-23."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from plugins.ledger.holds import POOL_SIZE
from tests.fakes.script import Script
from tests.proxy import launch
from tests.proxy.calls import chat, refused
from tests.proxy.harness import Proxy
from tests.proxy.models import NOTHING

BOUND = 2.0  # seconds until a change holds on every replica
CALM = 0.6  # seconds of traffic once a change must hold
INTERVAL = 0.1  # seconds between two calls of one caller


@dataclass(frozen=True, slots=True)
class Answer:
    replica: str
    sent_at: float
    got_at: float
    status: int
    code: str | None


class Traffic:
    """Callers that never pause, one for each replica and key."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._stop = threading.Event()

    def run(self, proxy: Proxy, key: str, model: str) -> None:
        body = json.dumps(chat(model))
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        wire = proxy.wire()
        while not self._stop.wait(INTERVAL):
            sent_at = time.time()
            wire.request("POST", "/v1/chat/completions", body=body, headers=headers)
            answer = wire.getresponse()
            document = json.loads(answer.read())
            code = document["error"]["code"] if "error" in document else None
            self.answers.append(Answer(proxy.name, sent_at, time.time(), answer.status, code))
        wire.close()

    def stop(self) -> None:
        self._stop.set()

    def after(self, moment: float, until: float = float("inf")) -> set[tuple[int, str | None]]:
        """Return what was answered to calls sent after *moment* and done before *until*."""
        return {
            (a.status, a.code) for a in self.answers if a.sent_at >= moment and a.got_at <= until
        }


@contextmanager
def constant_traffic(replicas: tuple[Proxy, Proxy], key: str, model: str) -> Iterator[Traffic]:
    traffic = Traffic()
    threads = [threading.Thread(target=traffic.run, args=(proxy, key, model)) for proxy in replicas]
    for thread in threads:
        thread.start()
    try:
        yield traffic
    finally:
        traffic.stop()
        for thread in threads:
            thread.join(30)


SERVED = (200, None)
UNKNOWN = (401, "invalid_api_key")


def test_o22_block_freeze_and_expiry_hold_on_both_replicas(replicas, providers, office, new_tenant):
    """Within two seconds of each change every replica answers by it, under constant traffic."""
    acme = new_tenant("acme", models=["local-a"])
    changes: list[tuple[Callable[[], object], tuple[int, str | None]]] = [
        (lambda: office("key", "block", acme.key_id), UNKNOWN),
        (lambda: office("key", "unblock", acme.key_id), SERVED),
        (lambda: office("tenant", "disable", acme.name), (403, "tenant_disabled")),
        (lambda: office("tenant", "enable", acme.name), SERVED),
        (
            lambda: office("grant", "remove", "--tenant", acme.name, "--model", "local-a"),
            (403, "model_not_allowed"),
        ),
        (lambda: office("grant", "add", "--tenant", acme.name, "--model", "local-a"), SERVED),
        (
            lambda: office("grant", "remove", "--tenant", acme.name, "--region", "*"),
            (403, "region_not_allowed"),
        ),
        (lambda: office("grant", "add", "--tenant", acme.name, "--region", "onprem"), SERVED),
        (
            lambda: office("grant", "remove", "--tenant", acme.name, "--provider", "*"),
            (403, "region_not_allowed"),
        ),
        (
            lambda: office("grant", "add", "--tenant", acme.name, "--provider", "llama.cpp"),
            SERVED,
        ),
        (lambda: office("key", "revoke", acme.key_id), UNKNOWN),
    ]

    with constant_traffic(replicas, acme.key, "local-a") as traffic:
        time.sleep(CALM)
        for change, expected in changes:
            change()
            done = time.time()
            time.sleep(BOUND + CALM)
            assert traffic.after(done + BOUND, time.time()) == {expected}

    assert {answer.replica for answer in traffic.answers} == {"P", "Q"}
    served = [answer for answer in traffic.answers if answer.status == 200]
    assert providers.seen() == {"A": 0, "B": 0, "L": len(served)}


def test_o22_a_key_expires_to_the_second(replicas, providers, office, new_tenant):
    """Nobody is refused before the time that was set, and nobody served from it on."""
    acme = new_tenant("acme", models=["local-a"])
    moment = (datetime.now(UTC) + timedelta(seconds=5)).replace(microsecond=0)
    expiring = office.key(acme.name, "--expires", moment.isoformat())
    for proxy in replicas:
        proxy.wait_for_key(expiring.key)

    with constant_traffic(replicas, expiring.key, "local-a") as traffic:
        time.sleep(max(0.0, moment.timestamp() - time.time()) + CALM)

    at = moment.timestamp()
    assert traffic.after(0, at) == {SERVED}
    assert traffic.after(at) == {UNKNOWN}
    served = [answer for answer in traffic.answers if answer.status == 200]
    assert providers.seen() == {"A": 0, "B": 0, "L": len(served)}


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        pytest.param(("key", "block"), 401, "invalid_api_key", id="key-blocked"),
        pytest.param(("tenant", "disable"), 403, "tenant_disabled", id="tenant-frozen"),
        pytest.param(("grant", "remove"), 403, "model_not_allowed", id="grant-removed"),
    ],
)
def test_a_change_between_two_tries_stops_the_second(
    p, providers, office, new_tenant, change, status, code
):
    """A call that was let in is checked again before each further try."""
    acme = new_tenant("acme", models=["cloud-eu"])
    providers.a.script(Script(hold=True, status=500))
    subject = {
        "key": (acme.key_id,),
        "tenant": (acme.name,),
        "grant": ("--tenant", acme.name, "--model", "cloud-eu"),
    }[change[0]]

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(p.post, "/v1/chat/completions", acme.key, chat("cloud-eu"))
        launch.eventually(lambda: len(providers.a.journal) == 1)
        office(*change, *subject)
        time.sleep(BOUND)
        providers.a.release()
        answer = pending.result(30)

    refused(answer, status, code)
    assert providers.seen() == {"A": 1, "B": 0, "L": 0}


def test_rotating_leaves_both_keys_open_for_the_grace(replicas, office, new_tenant):
    """During the grace old and new key work; after it only the new one."""
    acme = new_tenant("acme", models=["local-a"])

    rotated = office("key", "rotate", acme.key_id, "--grace", "4s")
    office.secrets.append(rotated["key"])
    for proxy in replicas:
        proxy.wait_for_key(rotated["key"])
        assert proxy.post("/v1/chat/completions", acme.key, chat("local-a")).status_code == 200
    ends = datetime.fromisoformat(rotated["old_expires_at"]).timestamp()
    time.sleep(max(0.0, ends - time.time()))

    for proxy in replicas:
        refused(
            proxy.post("/v1/chat/completions", acme.key, chat("local-a")), 401, "invalid_api_key"
        )
        assert (
            proxy.post("/v1/chat/completions", rotated["key"], chat("local-a")).status_code == 200
        )


def test_one_body_for_every_key_that_opens_nothing(p, providers, office, new_tenant):
    """Unknown, blocked, revoked, expired, malformed, absent, the master key: one answer."""
    acme = new_tenant("acme", models=["local-a"])
    blocked, revoked, expired = (
        office.key(acme.name),
        office.key(acme.name),
        office.key(acme.name, "--expires", "1s"),
    )
    office("key", "block", blocked.key_id)
    office("key", "revoke", revoked.key_id)
    time.sleep(BOUND)
    unknown = acme.key[:-1] + ("A" if acme.key[-1] != "A" else "B")
    keys = [blocked.key, revoked.key, expired.key, unknown, acme.key + "=", acme.key.upper(),
            "sk-wg-", "sk-1234", "x", p.master_key, acme.key_id, None]  # fmt: skip

    answers = [p.post("/v1/chat/completions", key, chat("local-a")) for key in keys]

    assert {(a.status_code, a.text) for a in answers} == {(401, answers[0].text)}
    assert len({tuple(sorted(set(a.headers) - {"date"})) for a in answers}) == 1
    refused(answers[0], 401, "invalid_api_key")
    assert providers.seen() == NOTHING


def test_a_blocked_key_cannot_even_list(replicas, office, new_tenant):
    """The listing is behind the same door."""
    acme = new_tenant("acme", models=["local-a"])
    office("key", "block", acme.key_id)
    time.sleep(BOUND)

    for proxy in replicas:
        refused(proxy.get("/v1/models", acme.key), 401, "invalid_api_key")


def test_a_key_opens_its_own_tenant_only(p, providers, new_tenant):
    """Two tenants with different grants do not see each other's models."""
    one = new_tenant("one", models=["local-a"])
    two = new_tenant("two", models=["cloud-eu"])

    refused(p.post("/v1/chat/completions", one.key, chat("cloud-eu")), 403, "model_not_allowed")
    refused(p.post("/v1/chat/completions", two.key, chat("local-a")), 403, "model_not_allowed")

    assert providers.seen() == NOTHING


@pytest.mark.parametrize(
    ("models", "providers_", "regions", "code"),
    [
        pytest.param([], ["*"], ["*"], "model_not_allowed", id="no-model"),
        pytest.param(["cloud-eu"], [], ["*"], "region_not_allowed", id="no-provider"),
        pytest.param(["cloud-eu"], ["*"], [], "region_not_allowed", id="no-region"),
        pytest.param(["cloud-eu"], ["beta"], ["*"], "region_not_allowed", id="other-provider"),
        pytest.param(["cloud-eu"], ["*"], ["us"], "region_not_allowed", id="other-region"),
        pytest.param(["cloud-eu"], ["ALPHA"], ["eu"], "region_not_allowed", id="upper-case"),
        pytest.param(["cloud-eu"], ["alpha"], ["e"], "region_not_allowed", id="only-a-prefix"),
    ],
)
def test_all_three_grants_must_match(p, providers, new_tenant, models, providers_, regions, code):
    """Model, provider and region: each one missing is enough to be refused."""
    acme = new_tenant("acme", models=models, providers=providers_, regions=regions)

    refused(p.post("/v1/chat/completions", acme.key, chat("cloud-eu")), 403, code)

    assert providers.seen() == NOTHING


def test_o23_a_pattern_matches_no_other_prefix(p, providers, new_tenant):
    """O-23: `local/*` is neither `local`, nor `local/`, nor `localx/big`."""
    acme = new_tenant("acme", models=["local/*", "cloud-eu"])
    bodies = set()

    for model in ("localx/big", "local", "local/", "cloud-eu-large", "cloud-us",
                  "cloud-us/local/a", "local/../cloud-us", "*", "local/*", "local/b"):  # fmt: skip
        answer = p.post("/v1/chat/completions", acme.key, chat(model))
        refused(answer, 403, "model_not_allowed")
        bodies.add(answer.text)
    assert len(bodies) == 1
    for model in ("", None, ["local/a", "cloud-us"]):
        refused(p.post("/v1/chat/completions", acme.key, chat(model)), 400, "invalid_request_error")
    assert providers.seen() == NOTHING
    for model in ("local/a", "cloud-eu"):
        assert p.post("/v1/chat/completions", acme.key, chat(model)).status_code == 200
    listed = p.get("/v1/models", acme.key).json()["data"]

    assert providers.seen() == {"A": 1, "B": 0, "L": 1}
    assert sorted(model["id"] for model in listed) == ["cloud-eu", "local/a"]


FLOOD = 2_000
CALLERS = 8
REPORTING = 1.5  # seconds; a backend of PostgreSQL reports its figures once a second


def test_a_flood_of_unknown_keys_asks_the_database_nothing(p, postgres, new_tenant):
    """Two thousand unknown keys are 2,000 times the same 401, and not one query."""
    new_tenant("acme", models=["local-a"])
    body = json.dumps(chat("local-a"))

    def some(caller: int) -> set[tuple[int, bytes]]:
        wire = p.wire()
        seen = set()
        for number in range(FLOOD // CALLERS):
            headers = {
                "Authorization": f"Bearer sk-wg-{caller:03}{number:040}",
                "Content-Type": "application/json",
            }
            wire.request("POST", "/v1/chat/completions", body=body, headers=headers)
            answer: http.client.HTTPResponse = wire.getresponse()
            seen.add((answer.status, answer.read()))
        wire.close()
        return seen

    time.sleep(REPORTING)
    before, started = committed(postgres.url), time.monotonic()
    with ThreadPoolExecutor(CALLERS) as pool:
        seen = set().union(*pool.map(some, range(CALLERS)))
    time.sleep(REPORTING)
    after, elapsed = committed(postgres.url), time.monotonic() - started

    assert [status for status, _ in seen] == [401]
    # Two replicas look at the revision twice a second; a few are our own and autovacuum's.
    assert after - before < 2 * 2 * elapsed + 40


def committed(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database"
            " WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_replica_holds_few_connections(p, postgres):
    """Each replica has two of its own, and one for each statement of calls at one moment."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        ).fetchone()

    assert row is not None
    assert row[0] <= 2 * (2 + POOL_SIZE)
