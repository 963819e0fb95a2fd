"""Budgets by command: what they say, what a new one takes over, and how a raise ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.ledger.settled import Shop

Office = Callable[..., Any]
OpenShop = Callable[..., Shop]


def ok(ran: Any) -> Any:
    assert ran.code == 0, ran.err
    return ran.data


def refused(ran: Any) -> str:
    assert (ran.code, ran.out) == (1, "")
    return str(ran.err.rstrip("\n"))


def set_budget(office: Office, *argv: str, tenant: str = "acme") -> Any:
    return ok(office("budget", "set", "--tenant", tenant, *argv))


def sums(budget: Any) -> tuple[str, str, str]:
    return budget["used"], budget["held"], budget["remaining"]


def test_a_new_budget(office: Office, open_shop: OpenShop) -> None:
    """It is told in the words of the contract, and listed and shown the same."""
    open_shop()

    made = set_budget(office, "--usd", "0.50", "--window", "total")

    assert made == {
        "id": made["id"],
        "tenant": "acme",
        "key": None,
        "task_type": None,
        "task": None,
        "unit": "usd",
        "limit": "0.5",
        "window": "total",
        "used": "0",
        "held": "0",
        "remaining": "0.5",
        "resets_at": None,
        "on_exhausted": "refuse",
        "state": "active",
        "base_limit": "0.5",
        "raised_until": None,
        "expires_at": None,
    }
    assert ok(office("budget", "list")) == [made]
    assert ok(office("budget", "list", "--tenant", "acme")) == [made]
    assert ok(office("budget", "show", made["id"])) == made


def test_small_amounts_have_no_exponent(office: Office, open_shop: OpenShop) -> None:
    """An amount is digits, however small."""
    open_shop()

    assert set_budget(office, "--usd", "0.00000015", "--window", "day")["limit"] == "0.00000015"


def test_each_scope_has_its_own(office: Office, open_shop: OpenShop) -> None:
    """Tenant, key, task type and task, in both units; a task that is not there is opened."""
    acme = open_shop()

    for scope in ([], ["--key", str(acme.key)], ["--task-type", "sum"], ["--task", "t-1"]):
        set_budget(office, *scope, "--usd", "1", "--window", "month")
        set_budget(office, *scope, "--tokens", "9", "--window", "month")

    listed = ok(office("budget", "list"))
    assert [(b["key"], b["task_type"], b["task"], b["unit"]) for b in listed] == [
        (key, task_type, task, unit)
        for key, task_type, task in (
            (None, None, None),
            (str(acme.key), None, None),
            (None, "sum", None),
            (None, None, "t-1"),
        )
        for unit in ("usd", "tokens")
    ]
    assert ok(office("task", "show", "t-1"))["state"] == "open"


def test_setting_again_changes_the_limit(office: Office, open_shop: OpenShop) -> None:
    """The same scope, unit and window is the same budget; what happens at its end stays."""
    open_shop()
    made = set_budget(
        office, "--usd", "1", "--window", "day", "--on-exhausted", "downgrade"
    )  # fmt: skip

    changed = set_budget(office, "--usd", "2", "--window", "day")

    assert changed == {**made, "limit": "2", "base_limit": "2", "remaining": "2"}
    assert ok(office("budget", "list")) == [changed]


def test_a_raise_ends(office: Office, open_shop: OpenShop) -> None:
    """With `--expires` another limit holds for a time, then the old one again."""
    acme = open_shop()
    made = set_budget(office, "--usd", "1", "--window", "total")
    until = datetime.now(UTC) + timedelta(hours=2)

    raised = set_budget(
        office, "--usd", "5", "--window", "total", "--expires", until.isoformat()
    )  # fmt: skip

    assert raised == {
        **made,
        "limit": "5",
        "remaining": "5",
        "raised_until": until.isoformat(),
    }
    acme.run("UPDATE wicketgate.budgets SET raised_until = now() - interval '1 second'")
    assert ok(office("budget", "show", made["id"]))["limit"] == "1"


def test_a_plain_limit_ends_a_raise(office: Office, open_shop: OpenShop) -> None:
    """Who lowers a limit means it now."""
    open_shop()
    set_budget(office, "--usd", "1", "--window", "total")
    set_budget(office, "--usd", "5", "--window", "total", "--expires", "2h")

    lowered = set_budget(office, "--usd", "0.5", "--window", "total")

    assert (lowered["limit"], lowered["raised_until"]) == ("0.5", None)


def test_a_budget_that_ends(office: Office, open_shop: OpenShop) -> None:
    """With `--expires` on none it ends then, leaves the list, and makes room for another."""
    acme = open_shop()
    made = set_budget(office, "--tokens", "100", "--window", "day", "--expires", "2h")
    assert made["expires_at"] is not None
    acme.run("UPDATE wicketgate.budgets SET expires_at = now() - interval '1 second'")

    assert ok(office("budget", "list")) == []
    assert ok(office("budget", "show", made["id"]))["state"] == "expired"
    again = set_budget(office, "--tokens", "7", "--window", "day")
    assert again["id"] != made["id"]
    assert ok(office("budget", "list")) == [again]


def test_remove(office: Office, open_shop: OpenShop) -> None:
    """A removed budget holds nothing back; removing it again is no error."""
    open_shop()
    made = set_budget(office, "--usd", "0", "--window", "day")

    removed = ok(office("budget", "remove", made["id"]))

    assert removed == {**made, "state": "removed"}
    assert ok(office("budget", "list")) == []
    assert ok(office("budget", "remove", made["id"])) == removed
    assert set_budget(office, "--usd", "1", "--window", "day")["id"] != made["id"]


def test_a_new_budget_counts_its_window(office: Office, open_shop: OpenShop) -> None:
    """Settled and open attempts of this window are in it, those of the last one are not."""
    acme = open_shop()
    old = (datetime.now(UTC) - timedelta(days=2)).isoformat()
    acme.call("5", at=old)
    acme.call("0.25", task="t-1", task_type="sum")
    acme.call(None)
    open_attempt = acme.hold(task="t-1", task_type="sum")

    usd = set_budget(office, "--usd", "1", "--window", "day")
    tokens = set_budget(office, "--tokens", "100", "--window", "day")
    task = set_budget(office, "--usd", "1", "--window", "day", "--task", "t-1")
    task_type = set_budget(office, "--tokens", "100", "--window", "day", "--task-type", "sum")
    key = set_budget(office, "--usd", "1", "--window", "day", "--key", str(acme.key))
    other = set_budget(office, "--usd", "1", "--window", "day", "--task-type", "other")
    assert sums(usd) == sums(task) == sums(key) == ("0.25", "0.000013", "0.749987")
    assert sums(tokens) == ("30", "30", "40")
    assert sums(task_type) == ("15", "30", "55")
    assert sums(other) == ("0", "0", "1")

    acme.settle(open_attempt, "0.5")
    shown = {b["id"]: sums(b) for b in ok(office("budget", "list"))}
    assert shown[usd["id"]] == shown[task["id"]] == shown[key["id"]] == ("0.75", "0", "0.25")
    assert shown[tokens["id"]] == ("45", "0", "55")
    assert shown[task_type["id"]] == ("30", "0", "70")


def test_a_total_budget_begins_now(office: Office, open_shop: OpenShop) -> None:
    """It takes over what is open, and nothing of what was paid before."""
    acme = open_shop()
    acme.call("0.25")
    open_attempt = acme.hold()

    made = set_budget(office, "--usd", "1", "--window", "total")
    assert sums(made) == ("0", "0.000013", "0.999987")

    acme.settle(open_attempt, "0.5")
    assert sums(ok(office("budget", "show", made["id"]))) == ("0.5", "0", "0.5")


def test_one_tenants_budget_counts_no_others(office: Office, open_shop: OpenShop) -> None:
    """What another tenant used or holds is not taken over."""
    open_shop()
    open_shop("rival").call("0.25")
    open_shop("third").hold()

    assert sums(set_budget(office, "--usd", "1", "--window", "day")) == ("0", "0", "1")


@pytest.mark.parametrize(
    ("zone", "kind"),
    [("Asia/Kolkata", "day"), ("America/Los_Angeles", "week"), ("Europe/Berlin", "month")],
)
def test_resets_at_the_tenants_own_midnight(
    zone: str, kind: str, office: Office, open_shop: OpenShop
) -> None:
    """The end of a window is a midnight there."""
    acme = open_shop(zone=zone)
    made = set_budget(office, "--usd", "1", "--window", kind)

    ends = datetime.fromisoformat(made["resets_at"])
    assert ends > datetime.now(UTC)
    [(clock,)] = acme.run(
        f"SELECT to_char('{made['resets_at']}'::timestamptz AT TIME ZONE '{zone}', 'HH24:MI:SS')"
    )
    assert clock == "00:00:00"


def test_every_change_is_in_the_audit_log(office: Office, open_shop: OpenShop) -> None:
    """Set, raise and remove leave a row each, with who and how much."""
    open_shop()
    made = set_budget(office, "--usd", "1", "--window", "day", "--actor", "Ada")
    set_budget(office, "--usd", "3", "--window", "day", "--expires", "1h", "--actor", "Ada")
    ok(office("budget", "remove", made["id"], "--actor", "Bob"))

    entries = ok(office("audit", "list", "--tenant", "acme"))

    assert [(e["actor"], e["action"], e["subject"]["limit"]) for e in entries] == [
        ("Bob", "budget remove", "3"),
        ("Ada", "budget raise", "3"),
        ("Ada", "budget set", "1"),
    ]


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--usd", "1e3"], "--usd: expected an amount such as 25 or 0.50, got '1e3'"),
        (["--usd=-1"], "--usd: expected an amount such as 25 or 0.50, got '-1'"),
        (["--usd", "NaN"], "--usd: expected an amount such as 25 or 0.50, got 'NaN'"),
        (["--usd", "١"], "--usd: expected an amount such as 25 or 0.50, got '١'"),
        (["--tokens", "1.5"], "--tokens: expected a whole number, got '1.5'"),
        (
            ["--usd", "1", "--key", "nobody"],
            "'nobody' is no key id, prefix or alias: see 'deploy/admin key list'",
        ),
        (["--usd", "1", "--task", " "], "--task: a name must not be empty"),
    ],
)
def test_not_a_budget(argv: list[str], line: str, office: Office, open_shop: OpenShop) -> None:
    """The line says what was expected, and nothing is made."""
    open_shop()

    assert refused(office("budget", "set", "--tenant", "acme", *argv, "--window", "day")) == line
    assert ok(office("budget", "list")) == []


def test_unknown_budget(office: Office) -> None:
    """An id that is none is refused."""
    assert refused(office("budget", "show", "x")) == "no budget 'x': see 'deploy/admin budget list'"


def test_a_budget_made_among_settlements(
    office: Office, open_shop: OpenShop, ledger_url: str
) -> None:
    """Calls that go on while a budget is made are each in it once, settled or held."""
    acme = open_shop()
    stop = threading.Event()

    def calls() -> None:
        with psycopg.connect(ledger_url, autocommit=True) as conn:
            mine = Shop(ledger_url, acme.tenant, acme.key, acme.price, conn)
            while not stop.is_set():
                mine.call("0.001")

    threads = [threading.Thread(target=calls) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        made = [
            set_budget(office, "--tokens", "1000000", "--window", "month", "--task-type", "none"),
            set_budget(office, "--usd", "1000", "--window", "month"),
            set_budget(office, "--tokens", "1000000000", "--window", "month"),
        ]
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)

    [(attempts,)] = acme.run("SELECT count(*) FROM wicketgate.attempts")
    assert attempts > 0
    tokens = ok(office("budget", "show", made[2]["id"]))
    assert (int(tokens["used"]), tokens["held"]) == (attempts * 15, "0")
