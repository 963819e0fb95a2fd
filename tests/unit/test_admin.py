"""The command line's grammar, its times, and what it says without a database."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plugins.admin import cli
from plugins.admin.times import LATEST, duration, expiry, later
from plugins.config import provider_variables
from plugins.config.flags import VARIABLES

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30d", timedelta(days=30)),
        ("12h", timedelta(hours=12)),
        ("90m", timedelta(minutes=90)),
        ("45s", timedelta(seconds=45)),
        ("0s", timedelta()),
        ("999999999d", timedelta(days=999_999_999)),
    ],
)
def test_duration(text: str, expected: timedelta) -> None:
    """A whole number and a unit."""
    assert duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "30", "d", "1.5h", "-1h", "+1h", "1 h", "1w", "1H", "٣d", "1h\n", "9" * 10 + "d"]
)
def test_not_a_duration(text: str) -> None:
    """Anything else is refused with examples."""
    with pytest.raises(ValueError) as refused:
        duration(text)
    assert str(refused.value) == (f"expected a duration such as 30d, 12h, 90m or 45s, got {text!r}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("45s", NOON + timedelta(seconds=45), id="from-now"),
        pytest.param("2026-12-01T12:00:01Z", NOON + timedelta(seconds=1), id="z"),
        pytest.param("2026-12-01T18:00+05:30", NOON + timedelta(minutes=30), id="other-offset"),
    ],
)
def test_expiry(text: str, expected: datetime) -> None:
    """A duration from now, or a time with an offset."""
    assert expiry(text, NOON) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "2027-01-31",
            "expected a time with an offset, got '2027-01-31': write 2027-01-31T00:00:00Z for UTC",
        ),
        (
            "2026-12-01T12:00:00Z",
            "expected a time in the future, got '2026-12-01T12:00:00Z';"
            " it is 2026-12-01T12:00:00Z now",
        ),
        ("0s", "expected a time in the future, got '0s'; it is 2026-12-01T12:00:00Z now"),
        (
            "tomorrow",
            "expected a duration such as 30d, 12h, 90m or 45s, or a time such as"
            " 2027-01-31T18:00:00+01:00, got 'tomorrow'",
        ),
        ("9999-12-31T00:00Z", "expected a time before the year 9999, got '9999-12-31T00:00Z'"),
        ("999999999d", "expected a time before the year 9999, got '999999999d'"),
    ],
)
def test_not_an_expiry(text: str, line: str) -> None:
    """The message says what was expected, and what to write instead."""
    with pytest.raises(ValueError) as refused:
        expiry(text, NOON)
    assert str(refused.value) == line


def test_later_ends_with_the_calendar() -> None:
    """A grace longer than the calendar is no crash."""
    assert later(NOON, timedelta(hours=1)) == NOON + timedelta(hours=1)
    assert later(NOON, timedelta(days=999_999_999)) == LATEST


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["tenant", "add", "a\x00b"], "argument 3 contains U+0000, which the ledger cannot hold"),
        (
            ["grant", "add", "--tenant", "caf\udce9"],
            "argument 4 is not valid UTF-8: check the terminal's encoding",
        ),
        (
            ["key", "issue", "--tenant", "x", "--alias", "\ud83d"],
            "argument 6 is not valid UTF-8: check the terminal's encoding",
        ),
    ],
)
def test_text_no_database_can_hold(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused in words, whichever option it came with, and not repeated."""
    assert cli.main(argv) == 2
    assert capsys.readouterr() == ("", f"{line}\n")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            [],
            "deploy/admin: the following arguments are required: COMMAND"
            " (see 'deploy/admin --help')",
        ),
        (
            ["tenant", "add"],
            "deploy/admin tenant add: the following arguments are required: NAME"
            " (see 'deploy/admin tenant add --help')",
        ),
        (
            ["key", "issue"],
            "deploy/admin key issue: the following arguments are required: --tenant"
            " (see 'deploy/admin key issue --help')",
        ),
        (
            ["audit", "list", "--limit", "0"],
            "deploy/admin audit list: argument --limit: expected a whole number from 1, got '0'"
            " (see 'deploy/admin audit list --help')",
        ),
        (
            ["tenant", "list", "--js\non"],
            "deploy/admin: unrecognized arguments: --js on (see 'deploy/admin --help')",
        ),
    ],
)
def test_usage_errors(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that is not understood ends with 2 and one line on stderr."""
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"{line}\n")


@pytest.mark.parametrize(
    "area",
    [
        "check",
        *[f"tenant {name}" for name in ("add", "list", "show", "disable", "enable")],
        *[f"grant {name}" for name in ("add", "remove", "list")],
        *[f"key {name}" for name in ("issue", "list", "block", "unblock", "rotate", "revoke")],
        *["db migrate", "db status", "audit list"],
    ],
)
def test_every_command_of_the_contract(area: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each explains itself and takes `--json`."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*area.split(), "--help"])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert "--json" in out
    assert err == ""


def test_check_prints_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1 when one is fatal; as data, every field of each."""
    path = tmp_path / "config.yaml"
    path.write_text("model_list: []\n", encoding="utf-8")

    code = cli.main(["check", str(path), "--json"])
    listed = json.loads(capsys.readouterr().out)

    assert code == 1
    assert {"level", "file", "line", "path", "rule", "got", "remedy"} == listed[0].keys()
    assert "general_settings.custom_auth" in [problem["path"] for problem in listed]


def test_check_without_a_file_looks_at_the_shipped_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Entries without their key are notes, and no reason to fail."""
    for name in [*provider_variables.NAMES, *VARIABLES, "LITELLM_MASTER_KEY"]:
        monkeypatch.delenv(name, raising=False)

    assert cli.main(["check"]) == 0
    assert "note: " in capsys.readouterr().out
