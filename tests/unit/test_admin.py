"""The command line's grammar, its times, and what it says without a database."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from plugins.admin import cli
from plugins.admin.times import LATEST, duration, expiry, later
from plugins.admin.unreachable import told
from plugins.config import provider_variables
from plugins.config.flags import VARIABLES
from plugins.ledger.database import LedgerUnavailable

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
        *[f"tenant {name}" for name in ("add", "list", "show", "set-zone", "disable", "enable")],
        *[f"grant {name}" for name in ("add", "remove", "list")],
        *[f"key {name}" for name in ("issue", "list", "block", "unblock", "rotate", "revoke")],
        *[f"budget {name}" for name in ("set", "list", "show", "remove")],
        *[f"task {name}" for name in ("list", "show", "open", "finish", "fail")],
        *["spend", "unit-cost", "prices list"],
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


def test_the_first_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has to ask twice for what there is."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "python -m" not in out
    assert "check [CONFIG]" in out
    assert "  spend --by X " in out
    assert "    set, list, show, remove\n" in out
    assert "    add, list, show, disable, enable, set-zone\n" in out
    assert "    issue, list, block, unblock, revoke, rotate\n" in out
    assert out.count("  deploy/admin ") == 2
    assert max(map(len, out.splitlines())) < 100


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """It is that of pyproject.toml."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"wicketgate \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("place", range(4))
def test_common_options_anywhere(place: int) -> None:
    """`--json` and `--actor` mean the same before, between and after the words of a command."""
    words = ["tenant", "show", "acme"]
    words[place:place] = ["--actor", "Ada", "--json"]
    args = cli.parser().parse_args(words)

    assert (args.actor, args.json, args.name) == ("Ada", True, "acme")


def test_common_options_left_out() -> None:
    """Text, and the account's own name."""
    args = cli.parser().parse_args(["tenant", "list"])

    assert (args.actor, args.json) == (None, False)


def unreachable_because(words: str, url: str = "postgresql://ada:hunter2@db:6543/l") -> str:
    error = LedgerUnavailable()
    error.__cause__ = OperationalError(None, None, psycopg.OperationalError(words))
    return told(error, url)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("x: Connection refused\n\tIs the server running?", ": nothing listens at db:6543."),
        ("failed to resolve host 'db': [Errno -2] x", ": unknown host 'db'."),
        ("x: fe_sendauth: no password supplied", ": user 'ada' needs a password."),
        ("x: Network is unreachable", ": db does not answer."),
        (
            'x: FATAL:  password authentication failed for user "ada"',
            ": the password for user 'ada' is not accepted.",
        ),
        ('x: FATAL:  database "l" does not exist', ": there is no database 'l' at db:6543."),
        ("x: FATAL:  zu viele Clients\nDETAIL: x", ": db:6543 says: zu viele Clients."),
        ("x: FATAL:  hunter2 is wrong", "."),
        ("server closed the connection unexpectedly", "."),
    ],
)
def test_why_the_ledger_is_unreachable(words: str, why: str) -> None:
    """The driver's words say what failed, the address where; no word of the password."""
    assert unreachable_because(words) == f"The ledger database is not available{why}"


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://db/l", "db:5432"),
        ("postgresql://[::1]:99/l", "[::1]:99"),
        ("postgresql:///l?host=/run/pg", "the socket in /run/pg"),
        ("postgresql:///l?host=db&port=7", "db:7"),
        ("postgresql:///l?host=a:1&host=b:2", "a:1,b:2"),
        ("postgresql:///l", "localhost:5432"),
    ],
)
def test_where_nothing_listens(url: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form of an address is told as it was meant."""
    for name in ("PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    assert unreachable_because("Connection refused", url) == (
        f"The ledger database is not available: nothing listens at {where}."
    )


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
