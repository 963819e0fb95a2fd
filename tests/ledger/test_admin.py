"""The admin commands, end to end on a real database."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, make_url

from plugins.admin import cli
from plugins.ledger import snapshot
from plugins.ledger.database import transaction
from plugins.policy.identity import Key, Refusal
from plugins.setup.postgres import EmbeddedPostgres
from tests.databases import visitor

Office = Callable[..., Any]
ROOT = Path(__file__).parents[2]
NAME = "Klinik Zürich 東京 🚑"
SAVED = "Keep the key now: only its hash is stored, it cannot be shown again.\n"


def ok(ran: Any) -> Any:
    assert ran.code == 0, ran.err
    return ran.data


def refused(ran: Any) -> str:
    """Return the one line a command refused with."""
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    return str(ran.err.rstrip("\n"))


def opens(engine: Engine, secret: str, now: datetime | None = None) -> Key | Refusal:
    """Ask the snapshot what *secret* opens."""
    with transaction(engine) as conn:
        return snapshot.load(conn).identify(secret, now or datetime.now(UTC))


def time_of(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    assert moment.utcoffset() == timedelta(0)
    return moment


# Tenants


def test_a_tenant_with_any_name(office: Office) -> None:
    """A name is kept as it was entered, and finds its tenant again, as the id does."""
    added = ok(office("tenant", "add", NAME, "--zone", "Europe/Berlin"))

    assert list(added) == ["id", "name", "zone", "state", "created_at"]
    assert (added["name"], added["zone"], added["state"]) == (NAME, "Europe/Berlin", "active")
    assert ok(office("tenant", "list")) == [added]
    shown = {**added, "grants": {"models": [], "providers": [], "regions": []}, "keys": []}
    assert ok(office("tenant", "show", NAME)) == shown
    assert ok(office("tenant", "show", added["id"])) == shown


def test_adding_a_tenant_twice(office: Office) -> None:
    """The same again is no error; another zone is one."""
    added = ok(office("tenant", "add", "acme"))
    again = office("tenant", "add", "acme")

    assert ok(again) == added
    assert again.err == "tenant 'acme' already exists\n"
    assert refused(office("tenant", "add", "acme", "--zone", "Europe/Berlin")) == (
        "tenant 'acme' already exists, with zone UTC; to change it:"
        " deploy/admin tenant set-zone acme Europe/Berlin"
    )


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["tenant", "add", " "], "tenant name: a name must not be empty"),
        (
            ["tenant", "add", "x" * 201],
            "tenant name: a name may have 200 characters, this one has 201",
        ),
        (
            ["tenant", "add", "a\nb"],
            "tenant name: a name must not contain control characters or lone surrogates",
        ),
        (
            ["tenant", "add", "0f3c2a52-5b7c-4d4e-9a53-3f0f6a1f2b11"],
            "a tenant's name must not be written as an id",
        ),
        (
            ["tenant", "add", "acme", "--zone", "Mars/Olympus"],
            "--zone: expected a name such as Europe/Berlin or UTC, got 'Mars/Olympus'",
        ),
        (
            ["tenant", "add", "acme", "--zone", "../etc/passwd"],
            "--zone: expected a name such as Europe/Berlin or UTC, got '../etc/passwd'",
        ),
        (["tenant", "show", "nobody"], "no tenant 'nobody': see 'deploy/admin tenant list'"),
        (["tenant", "add", "acme", "--actor", " "], "--actor: a name must not be empty"),
        (
            ["grant", "add", "--tenant", "acme"],
            "nothing to do: give --model, --provider or --region",
        ),
        (
            ["grant", "add", "--tenant", "acme", "--model", "*"],
            "--model '*': not a model name or a 'prefix/*' pattern",
        ),
        (
            ["grant", "add", "--tenant", "acme", "--region", "eu*"],
            "--region 'eu*': not a label; a label has up to 64 letters, digits and ._/:@-,"
            " the first a letter or digit",
        ),
        (
            ["grant", "add", "--tenant", "acme", "--region", "onprem,eu"],
            "--region 'onprem,eu': not a label; repeat the option: --region onprem --region eu",
        ),
        (
            ["grant", "add", "--tenant", "acme", "--model", "local/*, gpt"],
            "--model 'local/*, gpt': not a model name or a 'prefix/*' pattern;"
            " repeat the option: --model 'local/*' --model gpt",
        ),
        (
            ["key", "block", "laptop"],
            "'laptop' is no key id, prefix or alias: see 'deploy/admin key list'",
        ),
        (
            ["key", "block", "sk-wg-" + "s" * 43],
            "name a key by its id, its first 12 characters or its alias, not by the whole key",
        ),
        (
            ["key", "issue", "--tenant", "acme", "--expires", "2030-01-01T00:00:00"],
            "--expires: expected a time with an offset, got '2030-01-01T00:00:00':"
            " write 2030-01-01T00:00:00Z for UTC",
        ),
        (
            ["key", "rotate", "sk-wg-aaaaaa", "--grace", "soon"],
            "--grace: expected a duration such as 30d, 12h, 90m or 45s, got 'soon'",
        ),
    ],
)
def test_what_is_refused(office: Office, argv: list[str], line: str) -> None:
    """One line says what was expected; the ledger stays as it was."""
    assert refused(office(*argv)) == line
    assert ok(office("tenant", "list")) == []
    assert ok(office("audit", "list")) == []


def test_zones_without_time_zone_data(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slim system knows UTC; for the rest it is told what to install."""
    monkeypatch.setattr("zoneinfo.available_timezones", set)

    assert refused(office("tenant", "add", "acme", "--zone", "Europe/Berlin")) == (
        "--zone: this machine has no time zone data: install the system's tzdata package,"
        " or 'pip install tzdata'"
    )
    assert ok(office("tenant", "add", "acme"))["zone"] == "UTC"


def test_a_wrong_zone_can_be_mended(office: Office) -> None:
    """The log has both zones; the same again is no change."""
    added = ok(office("tenant", "add", "acme"))
    changed = office("tenant", "set-zone", "acme", "Asia/Tokyo")

    assert ok(changed) == {**added, "zone": "Asia/Tokyo"}
    again = office("tenant", "set-zone", added["id"], "Asia/Tokyo")
    assert again.err == "tenant 'acme' already has zone Asia/Tokyo\n"
    assert refused(office("tenant", "set-zone", "acme", "Tokyo")) == (
        "ZONE: expected a name such as Europe/Berlin or UTC, got 'Tokyo'"
    )
    entry, _ = ok(office("audit", "list"))
    assert (entry["action"], entry["subject"]) == (
        "tenant set-zone",
        {"tenant_id": added["id"], "tenant": "acme", "zone": "Asia/Tokyo", "old_zone": "UTC"},
    )


def test_a_frozen_tenant(office: Office, engine: Engine) -> None:
    """Its keys open nothing until it is enabled; both commands may be repeated."""
    ok(office("tenant", "add", "acme"))
    secret = ok(office("key", "issue", "--tenant", "acme"))["key"]

    assert ok(office("tenant", "disable", "acme"))["state"] == "disabled"
    assert opens(engine, secret) == Refusal("tenant_disabled", "This tenant is disabled.")
    assert office("tenant", "disable", "acme").err == "tenant 'acme' is already disabled\n"
    issued = office("key", "issue", "--tenant", "acme")
    assert issued.err == (
        "tenant 'acme' is disabled: the key opens nothing until it is enabled\n" + SAVED
    )
    assert ok(office("tenant", "enable", "acme"))["state"] == "active"
    assert isinstance(opens(engine, secret), Key)
    assert office("tenant", "enable", "acme").err == "tenant 'acme' is already enabled\n"


# Grants


def test_grants(office: Office) -> None:
    """One command takes several; what is there already is said, not refused."""
    tenant = ok(office("tenant", "add", NAME))
    granting = ["grant", "add", "--tenant", NAME, "--model", "local/*", "--model", "ü"]

    added = ok(office(*granting, "--provider", "*", "--region", "eu", "--region", "eu"))
    assert [(row["dimension"], row["pattern"]) for row in added] == [
        ("model", "local/*"),
        ("model", "ü"),
        ("provider", "*"),
        ("region", "eu"),
    ]
    assert [list(row) for row in added] == [["tenant", "dimension", "pattern", "created_at"]] * 4
    again = office("grant", "add", "--tenant", tenant["id"], "--model", "ü", "--model", "new")
    assert again.err == "already granted: model 'ü'\n"
    assert [row["pattern"] for row in ok(again)] == ["new", "ü"]

    assert ok(office("tenant", "show", NAME))["grants"] == {
        "models": ["local/*", "new", "ü"],
        "providers": ["*"],
        "regions": ["eu"],
    }
    ok(office("tenant", "add", "other"))
    assert ok(office("grant", "list", "--tenant", "other")) == []
    assert len(ok(office("grant", "list"))) == 5


def test_removing_grants_is_all_or_nothing(office: Office) -> None:
    """A pattern that is not there stops the removal of the others."""
    ok(office("tenant", "add", "acme"))
    ok(office("grant", "add", "--tenant", "acme", "--model", "a", "--region", "eu"))

    removing = ["grant", "remove", "--tenant", "acme", "--region", "eu", "--model"]
    assert refused(office(*removing, "b")) == (
        "not granted to 'acme': model 'b'; nothing was removed, see 'deploy/admin grant list'"
    )
    assert [row["pattern"] for row in ok(office("grant", "list"))] == ["a", "eu"]
    assert [row["pattern"] for row in ok(office(*removing, "a"))] == ["a", "eu"]
    assert ok(office("grant", "list")) == []


# Keys


def test_a_key(office: Office, engine: Engine) -> None:
    """It opens its tenant until it expires, to the second."""
    ok(office("tenant", "add", NAME))
    issued = ok(office("key", "issue", "--tenant", NAME, "--alias", NAME, "--expires", "30d"))

    assert list(issued) == ["key_id", "key", "prefix", "tenant", "expires_at"]
    assert re.fullmatch(r"sk-wg-[A-Za-z0-9_-]{43}", issued["key"])
    assert issued["prefix"] == issued["key"][:12]
    expires_at = time_of(issued["expires_at"])
    moment = timedelta(microseconds=1)
    assert isinstance(opens(engine, issued["key"], expires_at - moment), Key)
    assert isinstance(opens(engine, issued["key"], expires_at), Refusal)
    (listed,) = ok(office("key", "list", "--tenant", NAME))
    assert listed == {
        "key_id": issued["key_id"],
        "prefix": issued["prefix"],
        "tenant": NAME,
        "alias": NAME,
        "state": "active",
        "created_at": listed["created_at"],
        "expires_at": issued["expires_at"],
        "replaced_by": None,
    }
    assert time_of(listed["created_at"]) < expires_at


def test_block_unblock_revoke(office: Office, engine: Engine) -> None:
    """A block can be undone, a revocation cannot; each may be repeated."""
    ok(office("tenant", "add", "acme"))
    issued = ok(office("key", "issue", "--tenant", "acme"))
    prefix, secret = issued["prefix"], issued["key"]

    assert ok(office("key", "block", prefix))["state"] == "blocked"
    assert isinstance(opens(engine, secret), Refusal)
    assert office("key", "block", prefix).err == f"key {prefix} is already blocked\n"
    assert ok(office("key", "unblock", issued["key_id"]))["state"] == "active"
    assert isinstance(opens(engine, secret), Key)
    assert office("key", "unblock", prefix).err == f"key {prefix} is not blocked\n"
    assert ok(office("key", "revoke", prefix))["state"] == "revoked"
    assert isinstance(opens(engine, secret), Refusal)
    assert office("key", "revoke", prefix).err == f"key {prefix} is already revoked\n"
    for command in ("block", "unblock", "rotate"):
        assert refused(office("key", command, prefix)) == (
            f"key {prefix} is revoked for good: issue a new one with 'deploy/admin key issue'"
        )


def test_a_prefix_that_two_keys_share(office: Office, ledger_url: str) -> None:
    """It names a key together with the tenant; the id always does."""
    ids = []
    for tenant in ("acme", "other"):
        ok(office("tenant", "add", tenant))
        ids.append(ok(office("key", "issue", "--tenant", tenant))["key_id"])
    with psycopg.connect(ledger_url) as conn:
        conn.execute("UPDATE wicketgate.keys SET prefix = 'sk-wg-aaaaaa'")

    assert refused(office("key", "block", "sk-wg-aaaaaa")) == (
        "'sk-wg-aaaaaa' names 2 keys: add --tenant, or give the key's id,"
        " see 'deploy/admin key list'"
    )
    assert ok(office("key", "block", "sk-wg-aaaaaa", "--tenant", "other"))["key_id"] == ids[1]
    assert ok(office("key", "block", ids[0]))["tenant"] == "acme"
    assert refused(office("key", "block", ids[0], "--tenant", "other")) == (
        f"'{ids[0]}' is no key id, prefix or alias: see 'deploy/admin key list'"
    )


def test_an_alias_names_a_key(office: Office, ledger_url: str) -> None:
    """As long as one key has it: a rotated key shares it with its successor in the grace."""
    ids = []
    for tenant in ("acme", "other"):
        ok(office("tenant", "add", tenant))
        issuing = ("key", "issue", "--tenant", tenant, "--alias", "laptop")
        ids.append(ok(office(*issuing))["key_id"])

    assert refused(office("key", "block", "laptop")) == (
        "'laptop' names 2 keys: add --tenant, or give the key's id, see 'deploy/admin key list'"
    )
    assert ok(office("key", "block", "laptop", "--tenant", "acme"))["key_id"] == ids[0]
    new = ok(office("key", "rotate", "laptop", "--tenant", "other"))["key_id"]
    assert refused(office("key", "revoke", "laptop", "--tenant", "other")) == (
        "'laptop' names 2 keys: give the key's id, see 'deploy/admin key list'"
    )
    listed = ok(office("key", "list", "--tenant", "other"))
    assert [key["replaced_by"] for key in listed] == [new, None]
    with psycopg.connect(ledger_url) as conn:
        conn.execute("UPDATE wicketgate.keys SET expires_at = now() WHERE id = %s", [ids[1]])
    assert ok(office("key", "revoke", "laptop", "--tenant", "other"))["key_id"] == new


def test_an_alias_never_hides_another_key(office: Office) -> None:
    """What a key is called by itself comes first."""
    ok(office("tenant", "add", "acme"))
    key = ok(office("key", "issue", "--tenant", "acme"))
    for alias in (key["key_id"], key["prefix"]):
        ok(office("key", "issue", "--tenant", "acme", "--alias", alias))

    for name in (key["key_id"], key["prefix"]):
        assert ok(office("key", "block", name))["key_id"] == key["key_id"]


def test_rotation_with_a_grace(office: Office, engine: Engine) -> None:
    """Both keys work through the grace, then only the new one; alias and expiry carry over."""
    ok(office("tenant", "add", "acme"))
    issuing = ["key", "issue", "--tenant", "acme", "--alias", "app"]
    old = ok(office(*issuing, "--expires", "2099-01-01T00:00:00+01:00"))
    new = ok(office("key", "rotate", old["prefix"], "--grace", "1h"))

    assert list(new) == [
        *("key_id", "key", "prefix", "tenant", "expires_at", "old_key_id", "old_expires_at")
    ]
    assert (new["old_key_id"], new["expires_at"]) == (
        old["key_id"],
        "2098-12-31T23:00:00+00:00",
    )
    end = time_of(new["old_expires_at"])
    assert abs(end - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)
    moment = timedelta(microseconds=1)
    assert isinstance(opens(engine, old["key"], end - moment), Key)
    assert isinstance(opens(engine, old["key"], end), Refusal)
    assert isinstance(opens(engine, new["key"], end), Key)
    assert [key["alias"] for key in ok(office("key", "list"))] == ["app", "app"]
    assert refused(office("key", "rotate", old["prefix"])) == (
        f"key {old['prefix']} was already rotated: rotate its successor {new['key_id']}"
    )


def test_rotation_never_lets_a_key_live_longer(office: Office) -> None:
    """The grace ends when the old key would have expired anyway; by default after a day."""
    ok(office("tenant", "add", "acme"))
    soon = ok(office("key", "issue", "--tenant", "acme", "--expires", "5m"))
    endless = ok(office("key", "issue", "--tenant", "acme"))

    rotated = ok(office("key", "rotate", soon["prefix"], "--grace", "2h", "--expires", "1d"))
    assert rotated["old_expires_at"] == soon["expires_at"]
    assert time_of(rotated["expires_at"]) > time_of(soon["expires_at"])
    rotated = ok(office("key", "rotate", endless["prefix"]))
    assert rotated["expires_at"] is None
    left = time_of(rotated["old_expires_at"]) - datetime.now(UTC)
    assert abs(left - timedelta(days=1)) < timedelta(minutes=1)


def test_rotation_is_no_way_around_a_block(office: Office, ledger_url: str) -> None:
    """A key that opens nothing gets no successor that does."""
    ok(office("tenant", "add", "acme"))
    blocked = ok(office("key", "issue", "--tenant", "acme"))["prefix"]
    ok(office("key", "block", blocked))
    expired = ok(office("key", "issue", "--tenant", "acme"))
    with psycopg.connect(ledger_url) as conn:
        conn.execute(
            "UPDATE wicketgate.keys SET expires_at = now() WHERE id = %s", [expired["key_id"]]
        )

    assert refused(office("key", "rotate", blocked)) == (
        f"key {blocked} is blocked: unblock it first, or issue a new one"
    )
    assert refused(office("key", "rotate", expired["prefix"])) == (
        f"key {expired['prefix']} has expired: issue a new one"
    )
    assert [key["state"] for key in ok(office("key", "list"))] == ["blocked", "expired"]


def test_a_secret_is_printed_once_and_stored_nowhere(office: Office, ledger_url: str) -> None:
    """No table holds a key, in any spelling, and no later command shows it."""
    ok(office("tenant", "add", "acme"))
    issued = office("key", "issue", "--tenant", "acme", "--alias", "app")
    rotated = office("key", "rotate", ok(issued)["prefix"])
    secrets = [issued.data["key"], ok(rotated)["key"]]
    for ran, secret in zip((issued, rotated), secrets, strict=True):
        assert ran.out.count(secret) == 1
        assert ran.err == SAVED
    later = [
        office(*command.split())
        for command in ("key list", "tenant show acme", "audit list", "grant list")
    ]
    shown = "".join(ran.out + ran.err for ran in later)

    with psycopg.connect(ledger_url) as conn:
        tables = conn.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        assert len(tables) >= 14
        dump = "".join(
            str(row[0])
            for (name,) in tables
            for row in conn.execute(f"SELECT t::text FROM {name} t")
        )
    for secret in secrets:
        random_part = secret.removeprefix("sk-wg-")
        for spelling in (random_part[6:], random_part.encode().hex()):
            assert spelling not in dump
            assert spelling not in shown


# The audit log


def test_each_change_is_one_row_and_nothing_else_is(office: Office) -> None:
    """Repeats, refusals and questions leave no trace; each change leaves one."""
    ok(office("tenant", "add", "acme", "--actor", "Ada"))
    key = ok(office("key", "issue", "--tenant", "acme", "--actor", "Ada"))["prefix"]
    granting = (
        "grant",
        "add",
        "--tenant",
        "acme",
        "--model",
        "a",
        "--model",
        "b",
        "--region",
        "eu",
    )
    commands = [
        granting,
        granting,
        ("grant", "remove", "--tenant", "acme", "--model", "a", "--model", "b"),
        ("grant", "remove", "--tenant", "acme", "--model", "a"),
        *[("key", "block", key)] * 2,
        *[("key", "unblock", key)] * 2,
        ("key", "rotate", key),
        ("key", "rotate", key),
        *[("key", "revoke", key)] * 2,
        *[("tenant", "disable", "acme")] * 2,
        *[("tenant", "enable", "acme")] * 2,
        *[("tenant", "add", "acme"), ("tenant", "list"), ("key", "list"), ("grant", "list")],
    ]
    for command in commands:
        office(*command, "--actor", "Ada")

    entries = ok(office("audit", "list"))
    assert [entry["action"] for entry in reversed(entries)] == [
        "tenant add",
        "key issue",
        "grant add",
        "grant remove",
        "key block",
        "key unblock",
        "key rotate",
        "key revoke",
        "tenant disable",
        "tenant enable",
    ]
    assert {entry["actor"] for entry in entries} == {"Ada"}
    assert list(entries[0]) == ["id", "at", "actor", "action", "subject"]
    assert entries[-3]["subject"]["grants"] == [
        {"dimension": "model", "pattern": "a"},
        {"dimension": "model", "pattern": "b"},
        {"dimension": "region", "pattern": "eu"},
    ]
    assert ok(office("audit", "list", "--limit", "1")) == entries[:1]


def test_the_audit_log_of_one_tenant(office: Office) -> None:
    """Its own changes, those of its grants and those of its keys."""
    for tenant in ("acme", "other"):
        ok(office("tenant", "add", tenant))
        key = ok(office("key", "issue", "--tenant", tenant))["prefix"]
        ok(office("key", "block", key, "--tenant", tenant))
        ok(office("grant", "add", "--tenant", tenant, "--model", "a"))

    entries = ok(office("audit", "list", "--tenant", "acme"))
    actions = ["grant add", "key block", "key issue", "tenant add"]
    assert [entry["action"] for entry in entries] == actions
    assert {entry["subject"]["tenant"] for entry in entries} == {"acme"}
    assert ok(office("audit", "list", "--tenant", "acme", "--limit", "1")) == entries[:1]
    assert refused(office("audit", "list", "--tenant", "x")).startswith("no tenant 'x'")


def test_an_empty_list_says_how_to_fill_it(office: Office) -> None:
    """On stderr: the data is an empty list."""
    said = {}
    for command in ("tenant list", "key list", "grant list"):
        ran = office(*command.split())
        assert ok(ran) == []
        said[command] = ran.err
    ok(office("tenant", "add", NAME))

    rest = " --model MODEL --provider PROVIDER --region REGION\n"
    assert said == {
        "tenant list": "no tenants yet: deploy/admin tenant add NAME\n",
        "key list": "no keys yet: deploy/admin key issue --tenant TENANT\n",
        "grant list": f"no grants yet: deploy/admin grant add --tenant TENANT{rest}",
    }
    assert office("key", "list", "--tenant", NAME).err == (
        f"no keys of '{NAME}' yet: deploy/admin key issue --tenant '{NAME}'\n"
    )
    assert office("grant", "list", "--tenant", NAME).err == (
        f"no grants of '{NAME}' yet: deploy/admin grant add --tenant '{NAME}'{rest}"
    )


def test_the_actor_is_the_account_not_the_environment(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable does not change whose name the log gets."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "someone-else")
    ok(office("tenant", "add", "acme"))

    (entry,) = ok(office("audit", "list"))
    assert entry["actor"] not in {"someone-else", ""}


# The database


def test_db_commands(office: Office, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status says what is missing, migrate does it, and both may be repeated."""
    monkeypatch.setenv("LEDGER_URL", fresh_database)
    done = {"state": "current", "current": "0003", "head": "0003", "pending": []}

    assert refused(office("tenant", "list")) == (
        "The ledger database has no Wicketgate tables yet. Run 'deploy/admin db migrate'."
    )
    assert refused(office("tenant", "add", "acme")).startswith("The ledger database has no")
    assert ok(office("db", "status")) == {
        "state": "behind",
        "current": None,
        "head": "0003",
        "pending": ["0001", "0002", "0003"],
    }
    assert ok(office("db", "migrate")) == {**done, "applied": ["0001", "0002", "0003"]}
    again = office("db", "migrate")
    assert ok(again) == {**done, "applied": []}
    assert again.err == "nothing to migrate\n"
    assert ok(office("db", "status")) == done


def test_a_database_ahead_of_the_code(office: Office, ledger_url: str) -> None:
    """Both commands say which code to run."""
    with psycopg.connect(ledger_url) as conn:
        conn.execute("UPDATE wicketgate.alembic_version SET version_num = '9999'")
    line = (
        "the database is at revision 9999, this code knows only up to 0003:"
        " run the newer version of Wicketgate that migrated it\n"
    )

    ran = office("db", "status")
    assert (ran.code, ran.data["state"], ran.err) == (1, "ahead", line)
    assert refused(office("db", "migrate")) + "\n" == line


@pytest.mark.parametrize(
    ("url", "line"),
    [
        (
            "postgresql://someone:hunter2@127.0.0.1:1/ledger",
            "The ledger database is not available: nothing listens at 127.0.0.1:1."
            " Check LEDGER_URL.",
        ),
        (
            "mysql://someone:hunter2@db.example/ledger",
            "LEDGER_URL: expected postgresql://user:password@host:port/database"
            " (percent-encode special characters in the password)",
        ),
        (
            "postgresql://someone:hunter2@db.example:port/ledger",
            "LEDGER_URL: expected postgresql://user:password@host:port/database"
            " (percent-encode special characters in the password)",
        ),
    ],
)
def test_an_address_that_does_not_work(
    office: Office, monkeypatch: pytest.MonkeyPatch, url: str, line: str
) -> None:
    """The line says which part; the password is in none."""
    monkeypatch.setenv("LEDGER_URL", url)

    for command in ("tenant list", "db status", "db migrate"):
        assert refused(office(*command.split())) == line


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"password": "hunter2"}, "the password for user 'wicketgate' is not accepted"),
        ({"database": "ghost"}, "there is no database 'ghost' at {at}"),
        ({"host": "no.such.host.invalid"}, "unknown host 'no.such.host.invalid'"),
    ],
    ids=["password", "database", "host"],
)
def test_an_address_that_a_server_refuses(
    office: Office,
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    why: str,
) -> None:
    """What PostgreSQL itself answers is told apart."""
    url = make_url(ledger_url)
    changed = url.set(**change)  # type: ignore[arg-type]
    monkeypatch.setenv("LEDGER_URL", changed.render_as_string(hide_password=False))

    reason = why.format(at=f"{url.host}:{url.port}")
    assert refused(office("tenant", "list")) == (
        f"The ledger database is not available: {reason}. Check LEDGER_URL."
    )


def test_a_server_that_does_not_answer(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("LEDGER_URL", f"postgresql://u@127.0.0.1:{port}/l?connect_timeout=2")
        assert refused(office("tenant", "list")) == (
            "The ledger database is not available: 127.0.0.1 does not answer. Check LEDGER_URL."
        )


# As a program


def program(ledger_url: str, *argv: str | bytes, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "plugins.admin", *argv],
        cwd=ROOT,
        env={**os.environ, "LEDGER_URL": ledger_url, **env},
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_text_for_people(ledger_url: str) -> None:
    """Without `--json` data is a table or a list of fields, still alone on stdout."""
    program(ledger_url, "tenant", "add", NAME)
    program(ledger_url, "grant", "add", "--tenant", NAME, "--model", "a", "--model", "b")
    shown = program(ledger_url, "tenant", "show", NAME).stdout.decode()
    listed = program(ledger_url, "tenant", "list").stdout.decode().splitlines()

    assert f"name: {NAME}\nzone: UTC\nstate: active\n" in shown
    assert shown.endswith("grants:\n  models: a, b\n  providers: -\n  regions: -\nkeys: -\n")
    assert [len(listed), listed[0].split()] == [2, ["id", "name", "zone", "state", "created_at"]]
    issued = program(ledger_url, "key", "issue", "--tenant", NAME)
    assert issued.stdout.count(b"\nkey: sk-wg-") == 1
    assert issued.stderr.decode() == SAVED


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["text", "json"])
def test_a_terminal_that_cannot_show_a_name(ledger_url: str, as_json: list[str]) -> None:
    """It gets escapes, not a crash after the change was made."""
    ran = program(ledger_url, "tenant", "add", NAME, *as_json, PYTHONIOENCODING="ascii")

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert rb"\u6771\u4eac" in ran.stdout


def test_bytes_that_are_no_text(ledger_url: str) -> None:
    """An argument that is not UTF-8 is refused in words, before anything is touched."""
    ran = program(ledger_url, "tenant", "add", b"caf\xe9")

    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr == b"argument 3 is not valid UTF-8: check the terminal's encoding\n"


def test_a_closed_pipe(ledger_url: str) -> None:
    """`deploy/admin ... | head` ends without a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "plugins.admin", "db", "status"],
            cwd=ROOT,
            env={**os.environ, "LEDGER_URL": ledger_url},
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)

    assert (ran.returncode, ran.stderr) == (1, b"")


def test_without_a_ledger_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The embedded database is started for each command, and gets its tables by the first."""
    monkeypatch.delenv("LEDGER_URL", raising=False)
    monkeypatch.setenv("WICKETGATE_DATA", str(tmp_path))

    assert cli.main(["tenant", "add", NAME]) == 0
    assert capsys.readouterr().err == f"made the tables of the embedded database in {tmp_path}\n"
    assert cli.main(["db", "migrate"]) == 0
    assert capsys.readouterr().err == "nothing to migrate\n"
    assert cli.main(["tenant", "list"]) == 0
    out, err = capsys.readouterr()
    assert (NAME in out, err) == (True, "")


@pytest.mark.parametrize("command", [["db", "migrate"], ["tenant", "list"]], ids=" ".join)
def test_a_role_without_rights_is_one_line(
    command: list[str],
    postgres: EmbeddedPostgres,
    fresh_database: str,
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An empty database it may not fill, and a migrated one it may not read."""
    database = fresh_database if command == ["db", "migrate"] else ledger_url
    with visitor(postgres, database) as url:
        monkeypatch.setenv("LEDGER_URL", url)
        code = cli.main(command)

    out, err = capsys.readouterr()
    assert (code, out, err) == (
        1,
        "",
        "The ledger's role may not do this: grant it CREATE on the database,"
        " or migrate as its owner.\n",
    )
