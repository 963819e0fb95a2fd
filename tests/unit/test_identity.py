"""Keys and tenants: who a secret opens the gate for."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from plugins.policy.grants import Grants
from plugins.policy.identity import (
    Key,
    Refusal,
    Snapshot,
    Tenant,
    digest,
    display_prefix,
    name_problem,
    new_secret,
)

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SECRET = "sk-wg-" + "A" * 43
BAD_KEY = Refusal("invalid_api_key", "The API key is not valid.")


def snapshot(
    *, blocked: bool = False, expires_at: datetime | None = None, disabled: bool = False
) -> Snapshot:
    """Return a snapshot with the one key that SECRET opens."""
    tenant = Tenant("t", "acme", "UTC", disabled, Grants())
    key = Key("k", digest(SECRET), "sk-wg-AAAAAA", None, tenant, blocked, expires_at)
    return Snapshot(1, {key.digest: key}, {tenant.id: tenant})


@pytest.mark.parametrize(
    ("known", "code"),
    [
        pytest.param(snapshot(), None, id="active"),
        pytest.param(snapshot(expires_at=NOON + SECOND), None, id="one-second-left"),
        pytest.param(snapshot(expires_at=NOON), "invalid_api_key", id="expires-this-moment"),
        pytest.param(snapshot(expires_at=NOON - SECOND), "invalid_api_key", id="expired"),
        pytest.param(snapshot(blocked=True), "invalid_api_key", id="blocked"),
        pytest.param(snapshot(disabled=True), "tenant_disabled", id="tenant-disabled"),
        pytest.param(
            snapshot(disabled=True, blocked=True), "invalid_api_key", id="blocked-tells-no-more"
        ),
    ],
)
def test_identify(known: Snapshot, code: str | None) -> None:
    """A key opens its tenant, or the refusal says no more than it must."""
    found = known.identify(SECRET, NOON)

    assert (found.code if isinstance(found, Refusal) else None) == code


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param("", id="empty"),
        pytest.param("sk-wg-", id="start-only"),
        pytest.param(SECRET[:-1], id="one-short"),
        pytest.param(SECRET + "A", id="one-long"),
        pytest.param(SECRET + " ", id="trailing-space"),
        pytest.param(SECRET.lower(), id="lower-case"),
        pytest.param("SK-WG-" + "A" * 43, id="upper-case-start"),
        pytest.param(digest(SECRET).hex(), id="the-hash-itself"),
        pytest.param("sk-wg-AAAAAA", id="the-display-prefix"),
        pytest.param("sk-wg-\x00\ud800é東", id="no-text-at-all"),
        pytest.param("sk-wg-" + "A" * 100_000, id="100,000-characters"),
    ],
)
def test_unknown_keys_get_one_answer(secret: str) -> None:
    """Whatever is wrong with a key, the refusal is the same."""
    assert snapshot().identify(secret, NOON) == BAD_KEY


def test_every_bad_key_gets_the_same_body() -> None:
    """Unknown, blocked and expired cannot be told apart from outside."""
    answers = {
        snapshot().identify("sk-wg-unknown", NOON),
        snapshot(blocked=True).identify(SECRET, NOON),
        snapshot(expires_at=NOON).identify(SECRET, NOON),
    }

    assert answers == {BAD_KEY}


def test_a_new_secret() -> None:
    """256 random bits, in characters that need no quoting anywhere."""
    asked: list[int] = []

    def zeros(count: int) -> bytes:
        asked.append(count)
        return bytes(count)

    assert new_secret(zeros) == SECRET
    assert asked == [32]
    assert new_secret(lambda count: b"\xff" * count) == "sk-wg-" + "_" * 42 + "8"


def test_what_is_kept_of_a_secret() -> None:
    """A hash to find it by, and its first twelve characters for people."""
    assert digest(SECRET) == hashlib.sha256(SECRET.encode()).digest()
    assert display_prefix(SECRET) == "sk-wg-AAAAAA"


def test_nothing_secret_in_a_repr() -> None:
    """A snapshot or a key that ends up in a log shows no hash."""
    known = snapshot()
    shown = repr(known) + repr(known.keys[digest(SECRET)])

    assert repr(digest(SECRET)) not in shown
    assert digest(SECRET).hex() not in shown


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Klinik Zürich 東京 🚑", None),
        ("👩‍👩‍👧", None),
        ("x" * 200, None),
        ("x" * 201, "a name may have 200 characters, this one has 201"),
        ("", "a name must not be empty"),
        (" \u3000", "a name must not be empty"),
        ("a\x00b", "a name must not contain U+0000"),
        ("a\nb", "a name must not contain control characters or lone surrogates"),
        ("a\x85b", "a name must not contain control characters or lone surrogates"),
        ("a\udce9", "a name must not contain control characters or lone surrogates"),
    ],
)
def test_name_problem(name: str, problem: str | None) -> None:
    """Any text that can be stored and read may be a name."""
    assert name_problem(name) == problem
