"""`deploy/up`: everything a gateway needs, started in order and stopped in reverse."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from plugins.config import check, settings
from plugins.config.flags import FOREIGN_DATABASES
from plugins.ledger import migrate
from plugins.ledger.database import LedgerRefusedError, LedgerUnavailable, LedgerURLError
from plugins.setup import demo, local_engines, proxy_process
from plugins.setup.data_folder import (
    ROOT,
    Busy,
    CannotStart,
    Lock,
    clear_state,
    data_folder,
    prepare,
    write_private,
    write_state,
)
from plugins.setup.postgres import EmbeddedPostgres, given_ledger_url
from plugins.setup.proxy_process import ProxyProcess

POLL_INTERVAL = 0.2  # seconds
PROGRESS_SECONDS = 5.0
START_LIMIT = 300.0  # seconds for LiteLLM to load
DATABASE_RESTARTS = 5  # of the embedded server, in one run
LOOK_WAIT = 0.5  # seconds
SAME_MOMENT = 0.2  # seconds within which signals are one
ADMIN_COMMAND_WAIT = 30.0  # seconds for a `deploy/admin` that runs the database itself


@dataclass(frozen=True, slots=True)
class Options:
    demo: bool
    config: Path
    host: str
    port: int
    workers: int
    metrics_port: int

    @property
    def local_host(self) -> str:
        """Where this machine reaches a server that listens on `host`."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104

    @property
    def url(self) -> str:
        host = f"[{self.local_host}]" if ":" in self.local_host else self.local_host
        return f"http://{host}:{self.port}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    hurry = Hurry()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hurry.receive)
    # `nohup` asks to outlive the terminal.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hurry.receive)
    stack = ExitStack()
    up = Up(options, os.environ, stack, hurry)
    try:
        up.start()
        up.watch()
    except (CannotStart, LedgerRefusedError) as error:
        say(f"deploy/up: {error}")
        return 1
    except KeyboardInterrupt:
        return 0 if up.serving else 130
    finally:
        hurry.listen()
        stack.close()


def parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="deploy/up",
        description="Set everything up and serve; Ctrl-C stops it.",
        epilog="Variables: LEDGER_URL names a PostgreSQL of yours (else one is started), "
        "WICKETGATE_DATA the folder for data and logs (.data), WICKETGATE_VENV the virtual "
        "environment (.venv), WICKETGATE_PYTHON the Python to make it with.",
    )
    parser.add_argument(
        "--demo", action="store_true", help="serve a local model to a demo tenant and print a call"
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=ROOT / "litellm_config.yaml",
        metavar="FILE",
        help="LiteLLM's own configuration file, with our labels (litellm_config.yaml); "
        "deploy/admin check FILE explains what is wrong with one",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--port", type=_port, default=4000, help="port for callers: http://HOST:PORT/v1 (4000)"
    )
    parser.add_argument("--workers", type=_workers, default=1, help="worker processes (1)")
    parser.add_argument(
        "--metrics-port",
        type=_port_or_none,
        default=9400,
        help="port of /metrics, on 127.0.0.1 (9400); 0 serves none",
    )
    given = parser.parse_args(arguments)
    return Options(
        given.demo,
        check.tidy(given.config.absolute()),
        given.host,
        given.port,
        given.workers,
        given.metrics_port,
    )


def _port(text: str) -> int:
    return _number(text, "a port", 1, 65_535)


def _port_or_none(text: str) -> int:
    return _number(text, "a port", 0, 65_535)


def _workers(text: str) -> int:
    return _number(text, "a number", 1, 128)


def _number(text: str, what: str, low: int, high: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"expected {what} from {low} to {high}, got {text!r}")
    return int(text)


def say(text: str) -> None:
    # Whoever reads this may have gone; that is no reason to stop serving.
    with suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class Hurry:
    """Turns signals into an interrupt, and into a flag once stopping has begun."""

    def __init__(self) -> None:
        self._asked = False
        self._stopping = False
        self._last = -SAME_MOMENT

    def receive(self, number: int, _: object) -> None:
        now = time.monotonic()
        # A supervisor signals us and then our group; that is one wish.
        again = now - self._last >= SAME_MOMENT
        self._last = now
        if not self._stopping and again:
            raise KeyboardInterrupt
        self._asked = self._asked or (again and number != signal.SIGHUP)

    def listen(self) -> None:
        self._stopping = True

    def __call__(self) -> bool:
        return self._asked


class Up:
    """One run of `deploy/up`.

    Attributes:
        serving: True once the gateway has answered that it is ready.
    """

    def __init__(
        self,
        options: Options,
        environ: Mapping[str, str],
        stack: ExitStack,
        hurry: Callable[[], bool],
    ) -> None:
        self.serving = False
        self._options = options
        self._environ = environ
        self._stack = stack
        self._hurry = hurry
        self._folder = data_folder(environ)
        self._postgres: EmbeddedPostgres | None = None
        self._engine: demo.Engine | None = None
        self._proxy: ProxyProcess
        self._restarts = 0

    def start(self) -> None:
        """Start everything, in order.

        Raises:
            CannotStart: With the reason and the remedy; what was started is on the stack.
        """
        options = self._options
        refuse_foreign_database(self._environ)
        given_ledger_url(self._environ)
        prepare(self._folder)
        self._take_folder()
        refuse_taken_ports(options)
        self._check_config()
        url = self._database()
        _migrate(url)
        if options.demo:
            self._engine = demo.find_engine(self._folder, self._environ, say)
            self._stack.callback(self._engine.stop)
        rendered = self._render()
        key = demo.new_key(url, self._engine) if self._engine else None
        self._load(url, rendered)
        self.serving = True
        say(f"ready on {options.url} (Ctrl-C stops it)")
        say(f"log in {self._folder / 'proxy.log'}")
        if options.metrics_port:
            say(f"metrics on http://127.0.0.1:{options.metrics_port}/metrics")
        if key is not None:
            sys.stdout.write(demo.first_call(options.url, key))
            sys.stdout.flush()

    def watch(self) -> NoReturn:
        """Pass on what the proxy has to say, until a signal or until something ends for good."""
        while True:
            ended = self._proxy.poll() is not None
            for line in self._proxy.news():
                say(line)
            if ended:
                raise self._proxy_ended("LiteLLM ended")
            if self._postgres is not None and self._postgres.pid is None:
                self._restart_database(self._postgres)
            if self._engine is not None and self._engine.ended():
                say("the local model's server ended; start deploy/up --demo again to have it back")
                self._engine = None
            time.sleep(POLL_INTERVAL)

    def _take_folder(self) -> None:
        lock = Lock(self._folder / "lock", "deploy/up")
        try:
            # A `deploy/admin` that looks whether we run holds it for a moment.
            lock.acquire(wait=LOOK_WAIT)
        except Busy as holder:
            raise CannotStart(
                f"{self._folder} is in use by {holder}: stop that one, "
                "or name another folder with WICKETGATE_DATA"
            ) from None
        self._stack.callback(lock.release)

    def _check_config(self) -> None:
        problems = check.check_file(self._options.config, self._environ)
        for problem in problems:
            if problem.level != "note":
                say(str(problem))
        fatal = sum(problem.level == "fatal" for problem in problems)
        if fatal:
            raise CannotStart(
                f"{self._options.config} has {fatal} fatal problem(s), named above: "
                "correct them (deploy/admin check shows them again)"
            )

    def _database(self) -> str:
        if url := given_ledger_url(self._environ):
            say("database: the one that LEDGER_URL names")
            write_state(self._folder, None)
            self._stack.callback(clear_state, self._folder)
            return url
        say(f"database: embedded PostgreSQL in {self._folder}")
        self._postgres = EmbeddedPostgres(self._folder)
        self._stack.callback(self._postgres.stop)
        url = self._start_database(self._postgres)
        write_state(self._folder, url)
        self._stack.callback(clear_state, self._folder)
        return url

    def _start_database(self, server: EmbeddedPostgres) -> str:
        try:
            return server.start(wait=ADMIN_COMMAND_WAIT)
        except Busy as holder:
            raise CannotStart(
                f"the database in {self._folder} is held by {holder}: wait for that one to end"
            ) from None

    def _restart_database(self, server: EmbeddedPostgres) -> None:
        self._restarts += 1
        if self._restarts > DATABASE_RESTARTS:
            raise CannotStart(
                f"the embedded PostgreSQL keeps ending; see {self._folder / 'postgres.log'}"
            )
        say("the embedded PostgreSQL ended; starting it again")
        before = server.url
        if self._start_database(server) != before:
            raise CannotStart(
                "the port of the embedded PostgreSQL was taken meanwhile: start deploy/up again"
            )

    def _render(self) -> Path:
        """Write the configuration that LiteLLM reads, in a folder without our package."""
        extra = [self._engine.model_entry()] if self._engine else []
        rendered = settings.render(self._options.config, self._environ, extra)
        for line in rendered.left_out:
            say(f"left out: {line}")
        instead = "start it" if self._engine else "start it, or use --demo"
        for line in local_engines.silent(rendered.engines, instead):
            say(line)
        folder = self._folder / "rendered"
        folder.mkdir(mode=0o700, exist_ok=True)
        target = folder / "litellm_config.yaml"
        write_private(target, rendered.text)
        return target

    def _load(self, ledger_url: str, rendered: Path) -> None:
        options = self._options
        say("loading LiteLLM (15-30 s)")
        env = proxy_process.environment(
            self._environ, self._folder, options.config, ledger_url, options.metrics_port
        )
        self._proxy = ProxyProcess(
            proxy_process.command(rendered, options.host, options.port, options.workers),
            env,
            self._folder / "proxy.log",
            secrets=(ledger_url, _password(ledger_url), env["LITELLM_MASTER_KEY"]),
        )
        self._stack.callback(self._stop_proxy)
        started = time.monotonic()
        told = started
        while not proxy_process.is_ready(options.local_host, options.port):
            ended = self._proxy.poll() is not None
            trouble = self._proxy.news(loading=True)
            for line in trouble:
                say(line)
            if ended:
                raise self._proxy_ended("LiteLLM ended while it was loading", explained=trouble)
            now = time.monotonic()
            if now - started > START_LIMIT:
                raise self._proxy_ended(f"LiteLLM was not ready after {START_LIMIT:.0f} s")
            if now - told >= PROGRESS_SECONDS:
                say(f"    still loading, {now - started:.0f} s")
                told = now
            time.sleep(POLL_INTERVAL)

    def _proxy_ended(self, what: str, explained: Sequence[str] = ()) -> CannotStart:
        """Show the last of its log, unless it was *explained* by what was shown already."""
        for line in () if explained else self._proxy.last_lines():
            say(f"    {line}")
        code = self._proxy.poll()
        return CannotStart(
            f"{what}{'' if code is None else f' (exit code {code})'}; its last words are above, "
            f"all of its log is in {self._folder / 'proxy.log'}"
        )

    def _stop_proxy(self) -> None:
        if self._proxy.poll() is None:
            say("stopping; open requests may end (Ctrl-C again hurries)")
        self._proxy.stop(self._hurry)


def refuse_foreign_database(environ: Mapping[str, str]) -> None:
    """LiteLLM would run its own migrations on what these name."""
    for name in FOREIGN_DATABASES:
        if environ.get(name):
            raise CannotStart(
                f"{name} is set, and LiteLLM would take that database for its own: "
                f"unset {name}; the ledger's address is LEDGER_URL"
            )


def refuse_taken_ports(options: Options) -> None:
    _refuse_taken(options.host, options.port, "--port")
    if options.metrics_port:
        if options.metrics_port == options.port:
            raise CannotStart(
                f"--port and --metrics-port are both {options.port}: name two different ones"
            )
        _refuse_taken("127.0.0.1", options.metrics_port, "--metrics-port")


#: What the system says to an address that this machine does not have.
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def _refuse_taken(host: str, port: int, option: str) -> None:
    try:
        family = socket.AF_INET6 if _is_ipv6(host) else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError) as error:
        if isinstance(error, (socket.gaierror, UnicodeError)) or error.errno in _NOT_OURS:
            raise CannotStart(f"--host {host!r}: no such address here") from None
        reason = error.strerror or str(error)
        raise CannotStart(
            f"cannot listen on {host} port {port} ({reason}): "
            f"free it, or name another one with {option}"
        ) from None


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _migrate(url: str) -> None:
    say("database: migrating")
    try:
        migrate.migrate(url, lambda line: say(f"    {line}"))
    except LedgerURLError as error:
        raise CannotStart(str(error)) from None
    except LedgerUnavailable:
        raise CannotStart(
            "the database that LEDGER_URL names does not let us in: check its host, port, "
            "user, password and database, or unset LEDGER_URL to have one started here"
        ) from None
    except migrate.MigrationError as error:
        raise CannotStart(str(error)) from None


def _password(url: str) -> str:
    return unquote(urlsplit(url).password or "")


if __name__ == "__main__":
    sys.exit(main())
