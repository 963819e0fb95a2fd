"""Tasks by command: open, list, show, finish, fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def test_what_a_task_cost(office: Office, open_shop: OpenShop) -> None:
    """It opens at its first request, and all its attempts are in it, failed ones too."""
    acme = open_shop()
    first = acme.hold(task="report", task_type="sum")
    acme.settle(first, "0.1", status="failed")
    acme.call("0.2", task="report", task_type="sum")

    shown = ok(office("task", "show", "report"))

    assert shown == {
        "tenant": "acme",
        "task": "report",
        "task_type": "sum",
        "state": "open",
        "opened_at": shown["opened_at"],
        "ended_at": None,
        "requests": 2,
        "attempts": 2,
        "prompt_tokens": 20,
        "completion_tokens": 10,
        "cost_usd": "0.3",
    }
    assert ok(office("task", "list")) == [shown]


def test_open_by_command(office: Office, open_shop: OpenShop) -> None:
    """A task may be opened before its first request; opening it again is no error."""
    open_shop()

    opened = ok(office("task", "open", "report", "--tenant", "acme", "--task-type", "sum"))

    assert (opened["state"], opened["task_type"], opened["requests"]) == ("open", "sum", 0)
    assert ok(office("task", "open", "report", "--tenant", "acme")) == opened
    assert refused(
        office("task", "open", "report", "--tenant", "acme", "--task-type", "other")
    ) == ("task 'report' already exists, with task type 'sum'")


@pytest.mark.parametrize(
    ("command", "state", "other"), [("finish", "finished", "fail"), ("fail", "failed", "finish")]
)
def test_the_end_of_a_task(
    command: str, state: str, other: str, office: Office, open_shop: OpenShop
) -> None:
    """It ends once: again is no error, otherwise is one."""
    open_shop()
    ok(office("task", "open", "report", "--tenant", "acme"))

    ended = ok(office("task", command, "report", "--actor", "Ada"))

    assert ended["state"] == state
    assert ended["ended_at"] is not None
    assert ok(office("task", command, "report")) == ended
    assert refused(office("task", other, "report")) == (
        f"task 'report' has already ended as {state}"
    )
    assert ok(office("task", "list", "--state", state)) == [ended]
    assert ok(office("task", "list", "--state", "open")) == []
    newest = ok(office("audit", "list"))[0]
    assert (newest["actor"], newest["action"]) == ("Ada", f"task {command}")


def test_a_name_of_two_tenants(office: Office, open_shop: OpenShop) -> None:
    """Then the tenant has to be named."""
    for name in ("acme", "rival"):
        open_shop(name)
        ok(office("task", "open", "report", "--tenant", name))

    assert refused(office("task", "show", "report")) == (
        "2 tenants have a task 'report': add --tenant"
    )
    assert ok(office("task", "show", "report", "--tenant", "rival"))["tenant"] == "rival"
    assert refused(office("task", "show", "x")) == "no task 'x': see 'deploy/admin task list'"
