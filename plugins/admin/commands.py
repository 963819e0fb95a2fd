"""What each admin command does: in one transaction, from arguments to plain data.

A command returns what `--json` prints. A change takes the one lock of all changes first, and
writes one row to the audit log; a command that finds nothing to change writes none.
"""

from __future__ import annotations

import secrets
import shlex
import zoneinfo
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from plugins.admin.times import duration, expiry, later
from plugins.ledger import audit, grants, keys, tenants
from plugins.ledger.grants import GrantRow, Pattern
from plugins.ledger.keys import KeyRow, NewKey
from plugins.ledger.tenants import TenantRow
from plugins.policy.grants import LABEL_RULE, Dimension, pattern_problem
from plugins.policy.identity import (
    PREFIX_LENGTH,
    SECRET_START,
    digest,
    display_prefix,
    name_problem,
    new_secret,
)

Data = dict[str, Any]


class RefusedError(Exception):
    """The command was not carried out; the text says why and what to do, in one line."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What a command works with.

    Attributes:
        conn: A connection inside the command's transaction.

        now: The time the command was given; aware.

        actor: Whose name the audit log gets.

        say: Tells the person something that is not data.
    """

    conn: Connection
    now: datetime
    actor: str
    say: Callable[[str], None]


# Tenants


def tenant_add(desk: Desk, args: Namespace) -> Data:
    check_name("tenant name", args.name)
    check_zone("--zone", args.zone)
    existing = tenants.find(desk.conn, args.name)
    if existing is None:
        try:
            return _tenant(tenants.add(desk.conn, args.name, args.zone, actor=desk.actor))
        except ValueError as error:
            raise RefusedError(str(error)) from error
    if existing.name != args.name:
        raise RefusedError(f"{args.name!r} is the id of tenant {existing.name!r}, not a name")
    if existing.zone != args.zone:
        change = f"deploy/admin tenant set-zone {shlex.quote(existing.name)} {args.zone}"
        raise RefusedError(
            f"tenant {existing.name!r} already exists, with zone {existing.zone};"
            f" to change it: {change}"
        )
    desk.say(f"tenant {existing.name!r} already exists")
    return _tenant(existing)


def tenant_list(desk: Desk, _args: Namespace) -> list[Data]:
    found = tenants.every(desk.conn)
    if not found:
        desk.say("no tenants yet: deploy/admin tenant add NAME")
    return [_tenant(tenant) for tenant in found]


def tenant_show(desk: Desk, args: Namespace) -> Data:
    tenant = find_tenant(desk, args.name)
    granted = grants.listed(desk.conn, tenant.id)
    return {
        **_tenant(tenant),
        "grants": {
            f"{dimension}s": [row.pattern for row in granted if row.dimension is dimension]
            for dimension in Dimension
        },
        "keys": [_key(key, desk.now) for key in keys.listed(desk.conn, tenant.id)],
    }


def tenant_set_zone(desk: Desk, args: Namespace) -> Data:
    check_zone("ZONE", args.zone)
    tenant = find_tenant(desk, args.name)
    if tenant.zone == args.zone:
        desk.say(f"tenant {tenant.name!r} already has zone {tenant.zone}")
        return _tenant(tenant)
    return _tenant(tenants.set_zone(desk.conn, tenant, args.zone, actor=desk.actor))


def tenant_disable(desk: Desk, args: Namespace) -> Data:
    tenant = find_tenant(desk, args.name)
    if tenant.disabled:
        desk.say(f"tenant {tenant.name!r} is already disabled")
        return _tenant(tenant)
    return _tenant(tenants.disable(desk.conn, tenant, actor=desk.actor))


def tenant_enable(desk: Desk, args: Namespace) -> Data:
    tenant = find_tenant(desk, args.name)
    if not tenant.disabled:
        desk.say(f"tenant {tenant.name!r} is already enabled")
        return _tenant(tenant)
    return _tenant(tenants.enable(desk.conn, tenant, actor=desk.actor))


# Grants


def grant_add(desk: Desk, args: Namespace) -> list[Data]:
    patterns = _patterns(args)
    for dimension, pattern in patterns:
        problem = pattern_problem(dimension, pattern) or name_problem(pattern)
        if problem is not None:
            hint = _pattern_hint(dimension, pattern)
            raise RefusedError(f"--{dimension} {pattern!r}: {problem}{hint}")
    tenant = find_tenant(desk, args.tenant)
    added = grants.add(desk.conn, tenant, patterns, actor=desk.actor)
    for dimension, pattern in patterns:
        if (dimension, pattern) not in added:
            desk.say(f"already granted: {dimension} {pattern!r}")
    rows = grants.listed(desk.conn, tenant.id)
    return [_grant(row) for row in rows if (row.dimension, row.pattern) in patterns]


def grant_remove(desk: Desk, args: Namespace) -> list[Data]:
    patterns = _patterns(args)
    tenant = find_tenant(desk, args.tenant)
    before = grants.listed(desk.conn, tenant.id)
    removed = grants.remove(desk.conn, tenant, patterns, actor=desk.actor)
    missing = [f"{d} {p!r}" for d, p in patterns if (d, p) not in removed]
    if missing:
        raise RefusedError(
            f"not granted to {tenant.name!r}: {', '.join(missing)}; nothing was removed,"
            " see 'deploy/admin grant list'"
        )
    return [_grant(row) for row in before if (row.dimension, row.pattern) in removed]


def grant_list(desk: Desk, args: Namespace) -> list[Data]:
    tenant = tenant_asked_for(desk, args)
    found = grants.listed(desk.conn, tenant.id if tenant else None)
    if not found:
        rest = " --model MODEL --provider PROVIDER --region REGION"
        say_none_yet(desk, tenant, "grants", "grant add", rest)
    return [_grant(row) for row in found]


# Keys


def key_issue(desk: Desk, args: Namespace) -> Data:
    if args.alias is not None:
        check_name("--alias", args.alias)
    expires_at = None if args.expires is None else checked_expiry(args.expires, desk.now)
    tenant = find_tenant(desk, args.tenant)
    secret = new_secret(secrets.token_bytes)
    key = keys.issue(desk.conn, tenant, _new_key(secret, args.alias, expires_at), actor=desk.actor)
    if tenant.disabled:
        desk.say(f"tenant {tenant.name!r} is disabled: the key opens nothing until it is enabled")
    return _issued(desk, key, secret)


def key_list(desk: Desk, args: Namespace) -> list[Data]:
    tenant = tenant_asked_for(desk, args)
    found = keys.listed(desk.conn, tenant.id if tenant else None)
    if not found:
        say_none_yet(desk, tenant, "keys", "key issue")
    return [_key(key, desk.now) for key in found]


def key_block(desk: Desk, args: Namespace) -> Data:
    key = find_key(desk, args)
    _refuse_revoked(key)
    if key.blocked_at is not None:
        desk.say(f"key {key.prefix} is already blocked")
        return _key(key, desk.now)
    return _key(keys.block(desk.conn, key, actor=desk.actor), desk.now)


def key_unblock(desk: Desk, args: Namespace) -> Data:
    key = find_key(desk, args)
    _refuse_revoked(key)
    if key.blocked_at is None:
        desk.say(f"key {key.prefix} is not blocked")
        return _key(key, desk.now)
    return _key(keys.unblock(desk.conn, key, actor=desk.actor), desk.now)


def key_revoke(desk: Desk, args: Namespace) -> Data:
    key = find_key(desk, args)
    if key.revoked_at is not None:
        desk.say(f"key {key.prefix} is already revoked")
        return _key(key, desk.now)
    return _key(keys.revoke(desk.conn, key, actor=desk.actor), desk.now)


def key_rotate(desk: Desk, args: Namespace) -> Data:
    """Issue a successor with the same alias and expiry; the old key works through the grace."""
    grace = _grace(args.grace)
    key = find_key(desk, args)
    _refuse_to_rotate(desk, key)
    expires_at = key.expires_at if args.expires is None else checked_expiry(args.expires, desk.now)
    old_expires_at = keys.grace_end(key, later(desk.now, grace))
    secret = new_secret(secrets.token_bytes)
    new = keys.rotate(
        desk.conn,
        key,
        _new_key(secret, key.alias, expires_at),
        old_expires_at,
        actor=desk.actor,
    )
    return {
        **_issued(desk, new, secret),
        "old_key_id": str(key.id),
        "old_expires_at": shown_time(old_expires_at),
    }


def audit_list(desk: Desk, args: Namespace) -> list[Data]:
    tenant = tenant_asked_for(desk, args)
    return [
        {
            "id": entry.id,
            "at": shown_time(entry.at),
            "actor": entry.actor,
            "action": entry.action,
            "subject": entry.subject,
        }
        for entry in audit.entries(desk.conn, args.limit, tenant.name if tenant else None)
    ]


# What is asked for


def find_tenant(desk: Desk, name_or_id: str) -> TenantRow:
    tenant = tenants.find(desk.conn, name_or_id)
    if tenant is None:
        raise RefusedError(f"no tenant {name_or_id!r}: see 'deploy/admin tenant list'")
    return tenant


def tenant_asked_for(desk: Desk, args: Namespace) -> TenantRow | None:
    """Return the tenant that `--tenant` narrows to; None: all of them."""
    return None if args.tenant is None else find_tenant(desk, args.tenant)


def say_none_yet(
    desk: Desk, tenant: TenantRow | None, what: str, command: str, rest: str = ""
) -> None:
    of, name = (f" of {tenant.name!r}", shlex.quote(tenant.name)) if tenant else ("", "TENANT")
    desk.say(f"no {what}{of} yet: deploy/admin {command} --tenant {name}{rest}")


def find_key(desk: Desk, args: Namespace) -> KeyRow:
    if args.key.startswith(SECRET_START) and len(args.key) > PREFIX_LENGTH:
        # Never repeated: this may be the key itself.
        raise RefusedError(
            f"name a key by its id, its first {PREFIX_LENGTH} characters or its alias,"
            " not by the whole key"
        )
    tenant = tenant_asked_for(desk, args)
    found = keys.named(desk.conn, args.key, tenant.id if tenant else None)
    if not found:
        raise RefusedError(
            f"{args.key!r} is no key id, prefix or alias: see 'deploy/admin key list'"
        )
    if len(found) > 1:
        # A rotated key shares its alias with its successor until it has expired.
        found = [key for key in found if key.state(desk.now) in {"active", "blocked"}] or found
    if len(found) > 1:
        narrower = "give the key's id" if tenant else "add --tenant, or give the key's id"
        raise RefusedError(
            f"{args.key!r} names {len(found)} keys: {narrower}, see 'deploy/admin key list'"
        )
    return found[0]


def _refuse_revoked(key: KeyRow) -> None:
    if key.revoked_at is not None:
        raise RefusedError(
            f"key {key.prefix} is revoked for good: issue a new one with 'deploy/admin key issue'"
        )


def _refuse_to_rotate(desk: Desk, key: KeyRow) -> None:
    """Refuse a key whose successor would open more than it does itself."""
    _refuse_revoked(key)
    if key.replaced_by is not None:
        raise RefusedError(
            f"key {key.prefix} was already rotated: rotate its successor {key.replaced_by}"
        )
    state = key.state(desk.now)
    if state == "blocked":
        raise RefusedError(f"key {key.prefix} is blocked: unblock it first, or issue a new one")
    if state == "expired":
        raise RefusedError(f"key {key.prefix} has expired: issue a new one")


def _patterns(args: Namespace) -> list[Pattern]:
    """Return what was asked for, each pattern once."""
    named = [
        *((Dimension.MODEL, pattern) for pattern in args.model),
        *((Dimension.PROVIDER, pattern) for pattern in args.provider),
        *((Dimension.REGION, pattern) for pattern in args.region),
    ]
    if not named:
        raise RefusedError("nothing to do: give --model, --provider or --region")
    return list(dict.fromkeys(named))


def _pattern_hint(dimension: Dimension, pattern: str) -> str:
    """Return what to type instead: one option for each of several patterns in one."""
    parts = [part.strip() for part in pattern.split(",") if part.strip()]
    if "," in pattern and parts:
        options = " ".join(f"--{dimension} {shlex.quote(part)}" for part in parts)
        return f"; repeat the option: {options}"
    return "" if dimension is Dimension.MODEL else f"; {LABEL_RULE}"


def check_name(what: str, name: str) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise RefusedError(f"{what}: {problem}")


def check_zone(what: str, zone: str) -> None:
    known = zoneinfo.available_timezones()
    if zone == "UTC" or zone in known:
        return
    if not known:
        raise RefusedError(
            f"{what}: this machine has no time zone data: install the system's tzdata package,"
            " or 'pip install tzdata'"
        )
    raise RefusedError(f"{what}: expected a name such as Europe/Berlin or UTC, got {zone!r}")


def checked_expiry(text: str, now: datetime) -> datetime:
    try:
        return expiry(text, now)
    except ValueError as error:
        raise RefusedError(f"--expires: {error}") from error


def _grace(text: str) -> timedelta:
    try:
        return duration(text)
    except ValueError as error:
        raise RefusedError(f"--grace: {error}") from error


def _new_key(secret: str, alias: str | None, expires_at: datetime | None) -> NewKey:
    return NewKey(digest(secret), display_prefix(secret), alias, expires_at)


# What is answered


def _tenant(tenant: TenantRow) -> Data:
    return {
        "id": str(tenant.id),
        "name": tenant.name,
        "zone": tenant.zone,
        "state": "disabled" if tenant.disabled else "active",
        "created_at": shown_time(tenant.created_at),
    }


def _grant(row: GrantRow) -> Data:
    return {
        "tenant": row.tenant,
        "dimension": row.dimension.value,
        "pattern": row.pattern,
        "created_at": shown_time(row.created_at),
    }


def _key(key: KeyRow, now: datetime) -> Data:
    return {
        "key_id": str(key.id),
        "prefix": key.prefix,
        "tenant": key.tenant,
        "alias": key.alias,
        "state": key.state(now),
        "created_at": shown_time(key.created_at),
        "expires_at": shown_time(key.expires_at),
        "replaced_by": None if key.replaced_by is None else str(key.replaced_by),
    }


def _issued(desk: Desk, key: KeyRow, secret: str) -> Data:
    desk.say("Keep the key now: only its hash is stored, it cannot be shown again.")
    return {
        "key_id": str(key.id),
        "key": secret,
        "prefix": key.prefix,
        "tenant": key.tenant,
        "expires_at": shown_time(key.expires_at),
    }


def shown_time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()
