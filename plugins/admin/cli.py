"""The command line: `python -m plugins.admin`, or `deploy/admin`.

Data goes to stdout, as text or with `--json` as JSON; everything else, errors too, goes to
stderr. Exit code 0: done, or already so; 1: not done, with the reason; 2: not understood.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import sys
import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

from plugins.admin import commands, money, output, reports, unreachable
from plugins.admin.commands import Desk, RefusedError
from plugins.config import check, settings
from plugins.config.settings import SettingsError
from plugins.ledger import migrate, snapshot, spend
from plugins.ledger.database import (
    LedgerBusyError,
    LedgerNotMigratedError,
    LedgerRefusedError,
    LedgerUnavailable,
    LedgerURLError,
    connect_engine,
    transaction,
)
from plugins.policy.identity import name_problem
from plugins.policy.work import Hosting
from plugins.setup.data_folder import CannotStart, data_folder
from plugins.setup.postgres import admin_ledger_url

Command = Callable[[Desk, Namespace], Any]

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


class UnreachableError(Exception):
    """The ledger database cannot be reached; the text says why, for the operator alone."""


REMEDIES: dict[type[Exception], str] = {
    UnreachableError: "",
    LedgerNotMigratedError: "Run 'deploy/admin db migrate'.",
    LedgerBusyError: "Try again when it has ended.",
    LedgerRefusedError: "",
    LedgerURLError: "",
    migrate.MigrationError: "",
    RefusedError: "",
    CannotStart: "",
}


class Parser(ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        line = " ".join(message.split())
        self.exit(2, f"{self.prog}: {line} (see '{self.prog} --help')\n")


def main(argv: list[str] | None = None) -> int:
    """Carry out one command and return its exit code."""
    given = sys.argv[1:] if argv is None else argv
    problem = unreadable(given)
    if problem is not None:
        say(problem)
        return 2
    args = parser().parse_args(given)
    try:
        code: int = args.run(args)
    except tuple(REMEDIES) as error:
        say(f"{error} {REMEDIES[type(error)]}".rstrip())
        return 1
    return code


def unreadable(given: list[str]) -> str | None:
    """Return what is wrong with the bytes of the command line; the text is not repeated."""
    for position, argument in enumerate(given, start=1):
        if "\x00" in argument:
            return f"argument {position} contains U+0000, which the ledger cannot hold"
        if any("\ud800" <= character <= "\udfff" for character in argument):
            return f"argument {position} is not valid UTF-8: check the terminal's encoding"
    return None


# Running


def reads(command: Command) -> Callable[[Namespace], int]:
    return lambda args: _in_transaction(command, args, changes=False)


def changes(command: Command) -> Callable[[Namespace], int]:
    return lambda args: _in_transaction(command, args, changes=True)


def _in_transaction(command: Command, args: Namespace, *, changes: bool) -> int:
    actor = _actor(args.actor)

    def carry_out(url: str) -> Any:
        with transaction(connect_engine(url)) as conn:
            if changes:
                snapshot.lock_for_change(conn)
            return command(Desk(conn, datetime.now(UTC), actor, say), args)

    with ledger() as url:
        try:
            data = carry_out(url)
        except LedgerNotMigratedError:
            if os.environ.get("LEDGER_URL"):
                raise
            migrate.migrate(url, lambda line: None)
            say(f"made the tables of the embedded database in {data_folder(os.environ)}")
            data = carry_out(url)
        # Only now: a key that was printed must be one that was stored.
        show(data, as_json=args.json, as_csv=args.csv)
    return 0


@contextmanager
def ledger() -> Iterator[str]:
    """Give the ledger's address; whoever cannot reach it is told why.

    Raises:
        UnreachableError: In place of `LedgerUnavailable`, which is for anyone to read.
    """
    with admin_ledger_url() as url:
        try:
            yield url
        except LedgerUnavailable as error:
            remedy = " Check LEDGER_URL." if os.environ.get("LEDGER_URL") else ""
            raise UnreachableError(f"{unreachable.told(error, url)}{remedy}") from error


def _actor(given: str | None) -> str:
    """Return the name for the audit log; by default that of the account this runs as."""
    name = given or _account()
    problem = name_problem(name)
    if problem is not None:
        raise RefusedError(f"--actor: {problem}")
    return name


def _account() -> str:
    # Not getpass.getuser(): it believes the environment before the operating system.
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def db_migrate(args: Namespace) -> int:
    with ledger() as url:
        applied = migrate.migrate(url, say)
        found = migrate.status(url)
    if not applied:
        say("nothing to migrate")
    show({**_status(found), "applied": applied}, as_json=args.json)
    return 0


def db_status(args: Namespace) -> int:
    with ledger() as url:
        found = migrate.status(url)
    show(_status(found), as_json=args.json)
    migrate.refuse_ahead(found)
    return 0


def _status(found: migrate.Status) -> dict[str, Any]:
    return {
        "state": found.state,
        "current": found.current,
        "head": found.head,
        "pending": list(found.pending),
    }


def check_config(args: Namespace) -> int:
    """Print the problems; 1 when one is fatal."""
    path = args.config or check.DEFAULT_CONFIG
    problems = check.check_file(path, os.environ)
    if args.json:
        show([asdict(problem) for problem in problems], as_json=True)
    else:
        for problem in problems:
            print(f"{problem.level}: {problem}")
    if not problems:
        say(f"{check.tidy(path)}: nothing to mend")
    return 1 if any(problem.level == "fatal" for problem in problems) else 0


def unit_cost(args: Namespace) -> int:
    """Print what a million output tokens cost: by the configuration, or by hand."""
    by_hand = (args.usd_per_hour, args.tokens_per_second)
    if by_hand == (None, None):
        hosting = reports.sorted_hosting(_settings(args.config or check.DEFAULT_CONFIG).hosting)
        if not hosting:
            say("no hosting costs: name them under wicketgate.hosting in the configuration")
    elif args.config is not None or None in by_hand:
        raise RefusedError("give --usd-per-hour and --tokens-per-second together, or a CONFIG")
    else:
        hosting = [(None, Hosting(args.usd_per_hour, args.tokens_per_second))]
    rows = reports.unit_costs(hosting, exact=args.json or args.csv)
    show(rows, as_json=args.json, as_csv=args.csv)
    return 0


def _settings(path: Path) -> settings.Settings:
    try:
        return settings.load(path)
    except SettingsError as error:
        raise RefusedError(f"{error}: see 'deploy/admin check {check.tidy(path)}'") from error


# The command line's grammar


def parser() -> Parser:
    root = Parser(
        prog=PROGRAM,
        usage="%(prog)s [--json] [--actor NAME] COMMAND ...",
        description=DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _common_options(root)
    root.set_defaults(json=False, csv=False, actor=None)
    root.add_argument("--version", action="version", version=f"wicketgate {_version()}")
    # Listed in the epilog: with their subcommands, which argparse would leave out.
    areas = root.add_subparsers(
        required=True, metavar="COMMAND", prog=PROGRAM, help=argparse.SUPPRESS
    )
    listed = []
    for name, shown, text, run, complete in SINGLE:
        complete(_add(areas, name, text, run))
        listed.append(f"  {shown:<{COMMAND_WIDTH}}{text}")
    for name, text, fill in AREAS:
        area = _area(areas, name, text)
        fill(area)
        listed += [f"  {name:<{COMMAND_WIDTH}}{text}", f"    {', '.join(area.choices)}"]
    root.epilog = "\n".join(["commands:", *listed, "", *EXAMPLES])
    return root


PROGRAM = "deploy/admin"
DESCRIPTION = """\
Tenants, grants, keys, budgets and reports of Wicketgate. Data goes to stdout, everything else to
stderr. Exit code 0: done, or already so; 1: not done, with the reason; 2: not understood."""
EXAMPLES = (
    "examples:",
    "  deploy/admin key issue --tenant acme --alias laptop --expires 30d",
    "  deploy/admin grant add --tenant acme --model 'local/*' --provider '*' --region onprem",
    "",
    "'deploy/admin COMMAND --help' explains each.",
)
COMMAND_WIDTH = 16
Commands = Any  # argparse does not export the type of its subcommands


def _version() -> str:
    with PYPROJECT.open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def _area(areas: Commands, name: str, text: str) -> Commands:
    area = areas.add_parser(name, help=text, description=text, allow_abbrev=False)
    _common_options(area)
    return area.add_subparsers(required=True, metavar="COMMAND", prog=f"{PROGRAM} {name}")


def _add(area: Commands, name: str, text: str, run: Callable[[Namespace], int]) -> Parser:
    command: Parser = area.add_parser(name, help=text, description=text, allow_abbrev=False)
    _common_options(command)
    command.set_defaults(run=run)
    return command


def _common_options(level: Parser) -> None:
    """Take them at each level; without a default, which would undo what an outer one found."""
    unset = argparse.SUPPRESS
    level.add_argument("--json", action="store_true", default=unset, help="print JSON")
    level.add_argument("--actor", metavar="NAME", default=unset, help="name for the audit log")


def _tenant_area(area: Commands) -> None:
    add = _add(area, "add", "add a tenant", changes(commands.tenant_add))
    add.add_argument("name", metavar="NAME")
    add.add_argument("--zone", default="UTC", help="time zone, e.g. Europe/Berlin (default UTC)")
    _listing(area, "list all tenants", commands.tenant_list)
    for name, text, run in (
        ("show", "show a tenant with its grants and keys", reads(commands.tenant_show)),
        ("disable", "freeze a tenant: its keys open nothing", changes(commands.tenant_disable)),
        ("enable", "undo disable", changes(commands.tenant_enable)),
    ):
        _add(area, name, text, run).add_argument("name", metavar="TENANT", help="name or id")
    zone = _add(area, "set-zone", "change a time zone", changes(commands.tenant_set_zone))
    zone.add_argument("name", metavar="TENANT", help="name or id")
    zone.add_argument("zone", metavar="ZONE", help="e.g. Europe/Berlin")


def _grant_area(area: Commands) -> None:
    for name, text, run in (
        ("add", "grant models, providers, regions", changes(commands.grant_add)),
        ("remove", "take grants away", changes(commands.grant_remove)),
    ):
        command = _add(area, name, text, run)
        _tenant_option(command, required=True)
        for option, pattern in (
            ("--model", "a model's name, or prefix/*"),
            ("--provider", "a provider's label, or *"),
            ("--region", "a region's label, or *"),
        ):
            command.add_argument(option, action="append", default=[], help=f"{pattern}; repeatable")
    _tenant_option(_listing(area, "list grants", commands.grant_list))


def _key_area(area: Commands) -> None:
    issue = _add(area, "issue", "issue a key and print it, once", changes(commands.key_issue))
    _tenant_option(issue, required=True)
    issue.add_argument("--alias", help="a name for people")
    issue.add_argument("--expires", metavar="WHEN", help="30d, 12h, or a time with an offset")
    _tenant_option(_listing(area, "list keys", commands.key_list))
    for name, text, run in (
        ("block", "stop a key until it is unblocked", commands.key_block),
        ("unblock", "undo block", commands.key_unblock),
        ("revoke", "stop a key for good", commands.key_revoke),
    ):
        _key_argument(_add(area, name, text, changes(run)))
    rotate = _add(area, "rotate", "issue a key in place of another", changes(commands.key_rotate))
    _key_argument(rotate)
    rotate.add_argument(
        "--grace", default="24h", metavar="TIME", help="how long both work (default 24h)"
    )
    rotate.add_argument("--expires", metavar="WHEN", help="default: as the old key was to")


def _key_argument(command: Parser) -> None:
    command.add_argument("key", metavar="KEY", help="the key's id, display prefix or alias")
    _tenant_option(command)


def _tenant_option(command: Parser, *, required: bool = False) -> None:
    command.add_argument("--tenant", required=required, metavar="TENANT", help="name or id")


def _listing(area: Commands, text: str, command: Command) -> Parser:
    """Add a command `list`, whose rows can be had as CSV as well."""
    listing = _add(area, "list", text, reads(command))
    _csv_option(listing)
    return listing


def _csv_option(command: Parser) -> None:
    command.add_argument("--csv", action="store_true", help="print CSV")


def _budget_area(area: Commands) -> None:
    change = _add(area, "set", "make, change or raise a budget", changes(money.budget_set))
    _tenant_option(change, required=True)
    scope = change.add_mutually_exclusive_group()
    scope.add_argument("--key", metavar="KEY", help="the key's id, display prefix or alias")
    scope.add_argument("--task-type", metavar="TYPE", help="of this tenant's calls")
    scope.add_argument("--task", metavar="TASK", help="opened if there is none of that name")
    limit = change.add_mutually_exclusive_group(required=True)
    limit.add_argument("--usd", metavar="D", help="US dollars, e.g. 0.50")
    limit.add_argument("--tokens", metavar="N", help="prompt and completion tokens")
    change.add_argument("--window", required=True, choices=("day", "week", "month", "total"))
    change.add_argument(
        "--on-exhausted", choices=("refuse", "downgrade"), help="default refuse, or as it was"
    )
    change.add_argument(
        "--expires",
        metavar="WHEN",
        help="30d, 12h, or a time with an offset; on a budget that exists: how long a raise lasts",
    )
    _tenant_option(_listing(area, "list the budgets in force", money.budget_list))
    for name, text, run in (
        ("show", "show one budget", reads(money.budget_show)),
        ("remove", "take a budget out of force", changes(money.budget_remove)),
    ):
        _add(area, name, text, run).add_argument("id", metavar="ID", help="the budget's id")


def _task_area(area: Commands) -> None:
    listing = _listing(area, "list tasks, newest first", money.task_list)
    listing.add_argument("--state", choices=("open", "finished", "failed"))
    listing.add_argument("--limit", type=_positive, default=1000, metavar="N")
    _tenant_option(listing)
    opening = _add(area, "open", "open a task before its first call", changes(money.task_open))
    opening.add_argument("task", metavar="TASK")
    opening.add_argument("--task-type", metavar="TYPE")
    _tenant_option(opening, required=True)
    for name, text, run in (
        ("show", "show a task and what it cost", reads(money.task_show)),
        ("finish", "end a task that did its work", changes(money.task_finish)),
        ("fail", "end a task that did not", changes(money.task_fail)),
    ):
        command = _add(area, name, text, run)
        command.add_argument("task", metavar="TASK", help="name or id")
        _tenant_option(command)


def _prices_area(area: Commands) -> None:
    _listing(area, "list every price a deployment had, per token", reports.prices_list)


def _spend_command(command: Parser) -> None:
    command.add_argument("--by", required=True, choices=spend.GROUPINGS)
    command.add_argument("--from", dest="first", metavar="DATE", help="the first day")
    command.add_argument("--to", dest="last", metavar="DATE", help="the last day")
    command.add_argument("--zone", help="whose days (default: the tenant's zone, else UTC)")
    _tenant_option(command)
    _csv_option(command)


def _unit_cost_command(command: Parser) -> None:
    command.add_argument("config", nargs="?", type=Path, metavar="CONFIG")
    command.add_argument("--usd-per-hour", type=_above_zero, metavar="D")
    command.add_argument("--tokens-per-second", type=_above_zero, metavar="R")
    _csv_option(command)


def _db_area(area: Commands) -> None:
    _add(area, "migrate", "bring the database to this version's schema", db_migrate)
    _add(area, "status", "say where the database stands", db_status)


def _audit_area(area: Commands) -> None:
    listing = _listing(area, "list changes, newest first", commands.audit_list)
    listing.add_argument("--limit", type=_positive, default=100, metavar="N")
    _tenant_option(listing)


def _check_command(command: Parser) -> None:
    command.add_argument("config", nargs="?", type=Path, metavar="CONFIG")


#: Commands of one word: name, how the help shows it, what it does.
SINGLE: tuple[tuple[str, str, str, Callable[[Namespace], int], Callable[[Parser], None]], ...] = (
    (
        "check",
        "check [CONFIG]",
        "report every problem of a configuration",
        check_config,
        _check_command,
    ),
    (
        "spend",
        "spend --by X",
        f"what was spent, by {', '.join(spend.GROUPINGS)}",
        reads(reports.spend_by),
        _spend_command,
    ),
    (
        "unit-cost",
        "unit-cost",
        "a million output tokens on machines of your own",
        unit_cost,
        _unit_cost_command,
    ),
)
AREAS: tuple[tuple[str, str, Callable[[Commands], None]], ...] = (
    ("tenant", "who pays, and whose data it is", _tenant_area),
    ("grant", "what a tenant may use", _grant_area),
    ("key", "virtual keys", _key_area),
    ("budget", "what may be spent, and what is left of it", _budget_area),
    ("task", "pieces of work, and what each cost", _task_area),
    ("prices", "what a token cost, and since when", _prices_area),
    ("db", "the ledger's database", _db_area),
    ("audit", "who changed what", _audit_area),
)


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return number


def _above_zero(text: str) -> Decimal:
    number = Decimal(text) if money.USD.fullmatch(text) else Decimal(0)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


# Output


def say(line: str) -> None:
    print(line, file=sys.stderr)


def show(data: Any, *, as_json: bool, as_csv: bool = False) -> None:
    if as_csv and not as_json:
        sys.stdout.write(output.as_csv(data))
    elif as_json:
        # A terminal that cannot show every character gets them escaped.
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        print(json.dumps(data, ensure_ascii=not utf8, indent=2))
    else:
        for line in output.lines(data):
            print(line)
    sys.stdout.flush()


def run() -> NoReturn:
    """Run as a program: a closed pipe or Ctrl-C ends it without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main()
    except KeyboardInterrupt:
        say("interrupted; nothing was changed unless data was printed above")
        code = 130
    except BrokenPipeError:
        # Python would flush into the closed pipe once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
