"""The administrator's desk: the real commands, run in this process on the tests' database."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    key: str
    key_id: str


class Office:
    def __init__(self, ledger_url: str) -> None:
        self._ledger_url = ledger_url
        self.secrets: list[str] = []

    def __call__(self, *arguments: str) -> Any:
        """Run `admin ARGUMENTS --json`; return what it prints."""
        from plugins.admin import cli

        printed, told = io.StringIO(), io.StringIO()
        with (
            _environment("LEDGER_URL", self._ledger_url),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(told),
        ):
            code = cli.main([*arguments, "--json"])
        assert code == 0, f"admin {' '.join(arguments)}: {told.getvalue()}"
        return json.loads(printed.getvalue())

    def tenant(
        self,
        name: str,
        *,
        models: Iterable[str] = (),
        providers: Iterable[str] = ("*",),
        regions: Iterable[str] = ("*",),
    ) -> Tenant:
        """Add a tenant under a unique name that begins with *name*, with one key."""
        unique = f"{name}-{next(_numbers)}"
        self("tenant", "add", unique)
        named = {"--model": models, "--provider": providers, "--region": regions}
        options = [
            part for option, values in named.items() for value in values for part in (option, value)
        ]
        if options:
            self("grant", "add", "--tenant", unique, *options)
        return self.key(unique)

    def key(self, tenant: str, *options: str) -> Tenant:
        """Issue one more key to *tenant*."""
        issued = self("key", "issue", "--tenant", tenant, *options)
        self.secrets.append(issued["key"])
        return Tenant(tenant, issued["key"], issued["key_id"])


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
