"""Keys, tenants, and the snapshot of both that every call is decided on."""

from __future__ import annotations

import hashlib
import hmac
import unicodedata
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from plugins.policy.grants import Grants
from plugins.policy.refusal import KEY_START, Refusal, invalid_api_key

SECRET_START = KEY_START
SECRET_BYTES = 32
#: Characters of a key that may be shown, stored and logged.
PREFIX_LENGTH = len(SECRET_START) + 6
#: A key has 49 characters; anything much longer is not hashed at all.
SECRET_MAX_LENGTH = 128
NAME_MAX_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Tenant:
    id: str
    name: str
    zone: str
    disabled: bool
    grants: Grants


@dataclass(frozen=True, slots=True)
class Key:
    """A virtual key that has not been revoked.

    Attributes:
        digest: SHA-256 of the secret; never shown.

        prefix: The first characters of the secret, for people to tell keys apart.

        expires_at: The first moment at which the key no longer opens anything; None: never.
    """

    id: str
    digest: bytes = field(repr=False)
    prefix: str
    alias: str | None
    tenant: Tenant
    blocked: bool
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every key and tenant at one revision of the database.

    Because it is whole, an unknown key is known to be unknown: it costs no query.
    """

    revision: int
    keys: Mapping[bytes, Key] = field(repr=False)
    tenants: Mapping[str, Tenant] = field(repr=False)

    def identify(self, secret: str, now: datetime) -> Key | Refusal:
        """Return the key that *secret* opens, or why it opens nothing."""
        if not secret.startswith(SECRET_START) or len(secret) > SECRET_MAX_LENGTH:
            return invalid_api_key()
        wanted = digest(secret)
        key = self.keys.get(wanted)
        # The lookup is by hash, so its timing says nothing of the secret; the comparison
        # is constant-time all the same, so that no later change of index can leak one.
        if key is None or not hmac.compare_digest(key.digest, wanted):
            return invalid_api_key()
        return self._standing(key, now)

    def look_again(self, key: Key, now: datetime) -> Key | Refusal:
        """Return the key that was identified earlier as it stands at this revision."""
        known = self.keys.get(key.digest)
        return invalid_api_key() if known is None else self._standing(known, now)

    @staticmethod
    def _standing(key: Key, now: datetime) -> Key | Refusal:
        if key.blocked or (key.expires_at is not None and now >= key.expires_at):
            return invalid_api_key()
        if key.tenant.disabled:
            return Refusal("tenant_disabled", "This tenant is disabled.")
        return key


def new_secret(random_bytes: Callable[[int], bytes]) -> str:
    """Return a fresh key of 256 random bits, e.g. from `secrets.token_bytes`."""
    text = urlsafe_b64encode(random_bytes(SECRET_BYTES)).rstrip(b"=")
    return SECRET_START + text.decode("ascii")


def digest(secret: str) -> bytes:
    """Return the SHA-256 a key is stored as; 256 random bits need no salt and no stretching."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def display_prefix(secret: str) -> str:
    return secret[:PREFIX_LENGTH]


def name_problem(name: str) -> str | None:
    """Return what is wrong with a tenant's name or a key's alias, or None.

    Any Unicode text will do, kept exactly as entered; only what Postgres cannot store or
    nobody can read is refused.
    """
    if not name.strip():
        return "a name must not be empty"
    if len(name) > NAME_MAX_LENGTH:
        return f"a name may have {NAME_MAX_LENGTH} characters, this one has {len(name)}"
    if "\x00" in name:
        return "a name must not contain U+0000"
    if any(unicodedata.category(character) in {"Cs", "Cc"} for character in name):
        return "a name must not contain control characters or lone surrogates"
    return None
