"""Reports of spend, prices and unit costs."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from plugins.admin import cli
from plugins.ledger import prices
from plugins.ledger.database import transaction
from plugins.ledger.prices import HostingRow
from plugins.policy.unit_cost import usd_per_million
from tests.ledger.settled import Shop

Office = Callable[..., Any]
OpenShop = Callable[..., Shop]
#: The five rows of case O-31.
ROWS = (
    ("2026-05-11T02:00Z", "0.10"),
    ("2026-05-11T08:30Z", "0.20"),
    ("2026-05-11T23:30Z", "0.30"),
    ("2026-05-12T06:59Z", "0.40"),
    ("2026-05-12T07:00Z", "0.50"),
)


def ok(ran: Any) -> Any:
    assert ran.code == 0, ran.err
    return ran.data


@pytest.mark.parametrize(
    ("zone", "days"),
    [
        ("UTC", ["0", "0.6", "0.9"]),
        ("America/Los_Angeles", ["0.1", "0.9", "0.5"]),
        ("Asia/Kolkata", ["0", "0.3", "1.2"]),
    ],
)
def test_single_days_add_up(
    zone: str, days: list[str], office: Office, open_shop: OpenShop
) -> None:
    """A day is exact in any zone, asked for alone or in a range (O-31)."""
    acme = open_shop()
    for at, usd in ROWS:
        acme.call(usd, at=at)
    dates = ["2026-05-10", "2026-05-11", "2026-05-12"]

    def report(by: str, first: str, last: str) -> list[Any]:
        return ok(office("spend", "--by", by, "--from", first, "--to", last, "--zone", zone))

    whole = report("day", dates[0], dates[-1])
    assert [(row["day"], row["cost_usd"]) for row in whole] == list(zip(dates, days, strict=True))
    assert [report("day", day, day)[0] for day in dates] == whole
    [tenant] = report("tenant", dates[0], dates[-1])
    assert tenant == {
        "tenant": "acme",
        "requests": 5,
        "attempts": 5,
        "prompt_tokens": 50,
        "cached_tokens": 20,
        "completion_tokens": 25,
        "cost_usd": "1.5",
    }
    assert sum(Decimal(day) for day in days) == Decimal("1.50")


def test_the_tenants_zone_is_the_default(office: Office, open_shop: OpenShop) -> None:
    """With `--tenant` days are that tenant's own, and nobody else's calls are in them."""
    acme = open_shop(zone="Asia/Kolkata")
    for at, usd in ROWS:
        acme.call(usd, at=at)
    open_shop("rival").call("7", at=ROWS[0][0])

    rows = ok(office("spend", "--by", "day", "--tenant", "acme"))

    assert [(row["day"], row["cost_usd"]) for row in rows] == [
        ("2026-05-11", "0.3"),
        ("2026-05-12", "1.2"),
    ]


def test_every_grouping(office: Office, open_shop: OpenShop) -> None:
    """A request that went to two models counts once in all, and once for each of them."""
    acme = open_shop()
    request = uuid4()
    other = acme.new_price("d-2", "n", "q")
    acme.call("0.1", task="t", task_type="sum", request=request)
    acme.settle(
        acme.hold(task="t", task_type="sum", request=request, number=2, price=other), "0.2"
    )  # fmt: skip
    # As the second attempt, but the first at its model and provider.
    acme.run(
        "UPDATE wicketgate.spend_quarters SET model_requests = 1, provider_requests = 1"
        " WHERE model = 'n'"
    )
    acme.call("0.4")

    def report(by: str) -> list[tuple[Any, ...]]:
        rows = ok(office("spend", "--by", by))
        return [(*row.values(),) for row in rows]

    assert report("tenant") == [("acme", 2, 3, 30, 12, 15, "0.7")]
    assert report("task-type") == [
        ("sum", 1, 2, 20, 8, 10, "0.3"),
        (None, 1, 1, 10, 4, 5, "0.4"),
    ]
    assert report("task") == [
        ("t", 1, 2, 20, 8, 10, "0.3", "acme"),
        (None, 1, 1, 10, 4, 5, "0.4", "acme"),
    ]
    assert report("model") == [("m", 2, 2, 20, 8, 10, "0.5"), ("n", 1, 1, 10, 4, 5, "0.2")]
    assert report("provider") == [("p", 2, 2, 20, 8, 10, "0.5"), ("q", 1, 1, 10, 4, 5, "0.2")]
    assert report("key") == [(str(acme.key), 2, 3, 30, 12, 15, "0.7", "acme")]


def test_a_correction_counts(office: Office, open_shop: OpenShop) -> None:
    """It is in its tenant's sum, and in that of the day it was made."""
    acme = open_shop()
    acme.call("0.50", at="2026-05-12T07:00Z")
    acme.run(
        "INSERT INTO wicketgate.adjustments (at, tenant_id, amount_usd, reason, actor)"
        f" VALUES ('2026-05-13T01:00Z', '{acme.tenant}', -0.2, 'refund', 'Ada')"
    )

    days = ok(office("spend", "--by", "day"))
    [tenant] = ok(office("spend", "--by", "tenant"))

    assert [(row["day"], row["requests"], row["cost_usd"]) for row in days] == [
        ("2026-05-12", 1, "0.5"),
        ("2026-05-13", 0, "-0.2"),
    ]
    assert tenant["cost_usd"] == "0.3"


def test_attempts_without_a_price_are_told(office: Office, open_shop: OpenShop) -> None:
    """What nobody priced is no silent zero."""
    open_shop().call(None)

    ran = office("spend", "--by", "tenant")

    assert ok(ran)[0]["cost_usd"] == "0"
    assert ran.err == "1 attempts have no price: their cost is not in these sums\n"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--from", "1.5.26"], "--from: expected a date such as 2027-01-31, got '1.5.26'"),
        (
            ["--from", "2026-05-12", "--to", "2026-05-11"],
            "--to 2026-05-11 lies before --from 2026-05-12",
        ),
        (["--to", "9999-12-31"], "--to: expected a year from 2000 to 9998, got '9999-12-31'"),
        (["--zone", "X"], "--zone: expected a name such as Europe/Berlin or UTC, got 'X'"),
    ],
)
def test_no_such_range(argv: list[str], line: str, office: Office) -> None:
    """A range that cannot be is refused in one line."""
    ran = office("spend", "--by", "day", *argv)

    assert (ran.code, ran.out, ran.err) == (1, "", f"{line}\n")


def test_csv(
    open_shop: OpenShop,
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A heading and a row each; a caller's text never becomes a spreadsheet's formula."""
    monkeypatch.setenv("LEDGER_URL", ledger_url)
    acme = open_shop()
    acme.call("0.1", task='=HYPERLINK("x")', task_type="a,b")

    assert cli.main(["spend", "--by", "task", "--csv"]) == 0
    assert capsys.readouterr().out == (
        "task,requests,attempts,prompt_tokens,cached_tokens,completion_tokens,cost_usd,tenant\r\n"
        '"\'=HYPERLINK(""x"")",1,1,10,4,5,0.1,acme\r\n'
    )


def test_prices(office: Office, open_shop: OpenShop) -> None:
    """Every revision, as plain digits; what the configuration does not state is null."""
    open_shop()

    [price] = ok(office("prices", "list"))

    assert price == {
        "deployment": "d-1",
        "model": "m",
        "provider": "p",
        "region": "eu",
        "input": "0.000001",
        "output": "0.00000015",
        "cached": None,
        "cache_write": None,
        "valid_from": price["valid_from"],
        "price_revision": price["price_revision"],
    }


def by_hand(speed: str) -> list[str]:
    return ["unit-cost", "--usd-per-hour", "1.00", "--tokens-per-second", speed]


def test_unit_cost_by_hand(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """30.3 tokens a second at $1.00 an hour is $9.17 a million, 80.7 is $3.44, 62.5 % apart."""
    slow, fast = ok(office(*by_hand("30.3")))[0], ok(office(*by_hand("80.7")))[0]

    assert slow == {
        "deployment": None,
        "usd_per_hour": "1",
        "tokens_per_second": "30.3",
        "usd_per_million": "9.167583",
    }
    assert fast["usd_per_million"] == "3.442104"
    saved = 1 - usd_per_million(Decimal(1), Decimal("80.7")) / usd_per_million(
        Decimal(1), Decimal("30.3")
    )
    assert round(saved * 100, 1) == Decimal("62.5")
    assert cli.main(by_hand("30.3")) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["-", "1", "30.3", "9.17"]


def test_unit_cost_of_the_configuration(office: Office, tmp_path: Path) -> None:
    """Each machine under `wicketgate.hosting`; one that was not measured has no cost yet."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "model_list:\n"
        + "".join(
            f"  - model_name: {name}\n"
            f"    litellm_params: {{model: openai/x, api_base: 'http://127.0.0.1:1/v1'}}\n"
            f"    model_info: {{id: {name}, provider: own, region: onprem,"
            " input_cost_per_token: 0, output_cost_per_token: 0}\n"
            for name in ("local", "idle")
        )
        + "wicketgate:\n"
        "  hosting:\n"
        "    local: {usd_per_hour: 1.00, tokens_per_second: 80.7}\n"
        "    idle: {usd_per_hour: 0.25}\n",
        encoding="utf-8",
    )

    rows = ok(office("unit-cost", str(path)))

    assert [(row["deployment"], row["usd_per_million"]) for row in rows] == [
        ("idle", None),
        ("local", "3.442104"),
    ]


def test_half_a_calculation(office: Office) -> None:
    """One number without the other is refused."""
    ran = office("unit-cost", "--usd-per-hour", "1")

    assert (ran.code, ran.err) == (
        1,
        "give --usd-per-hour and --tokens-per-second together, or a CONFIG\n",
    )


def test_hosting_is_written_down_once(engine: Engine) -> None:
    """Only a change makes a new revision."""
    row = HostingRow("local", Decimal("1.00"), Decimal("30.3"))
    dearer = HostingRow("local", Decimal("1.50"), None)

    with transaction(engine) as conn:
        assert prices.record_hosting(conn, [row]) == 1
        assert prices.record_hosting(conn, [row]) == 0
        assert prices.record_hosting(conn, [dearer]) == 1
        assert prices.hosting_now(conn) == [dearer]
