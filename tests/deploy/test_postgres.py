"""The embedded PostgreSQL: who may start it, what ends it, and how it comes back."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from plugins.setup import child_process, postgres
from plugins.setup.data_folder import Busy, CannotStart, Lock, is_held, write_state
from plugins.setup.postgres import EmbeddedPostgres, admin_ledger_url, answers

ROOT = Path(__file__).parents[2]
AS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not AS_ROOT, reason="only root may become another user")
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder below one that is closed to others, as `mktemp -d` makes it."""
    tmp_path.chmod(0o700)
    return tmp_path / "data"


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(folder, fsync=False) as server:
        yield server


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def value(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_what_was_written_is_there_after_a_restart(server: EmbeddedPostgres) -> None:
    """A stop and a start keep the data, the address and the password."""
    before = server.url
    with psycopg.connect(before) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 'Grüße, 世界' AS words")

    server.stop()
    server.start()

    assert server.url == before
    assert value(server.url, "SELECT words FROM kept") == "Grüße, 世界"


def test_the_role_owns_its_database_and_nothing_more(server: EmbeddedPostgres) -> None:
    """Our role is no superuser, and nobody can log in as the superuser."""
    assert value(server.url, "SELECT current_user || '@' || current_database()") == (
        "wicketgate@wicketgate"
    )
    assert value(server.url, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    assert not answers(server.url.replace("//wicketgate:", "//postgres:"))
    assert not answers(server.url.replace("@", "x@"))


def test_text_sorts_and_folds_the_same_on_every_system(server: EmbeddedPostgres) -> None:
    """The database is UTF-8 with the locale that PostgreSQL itself brings."""
    assert value(
        server.url,
        "SELECT pg_encoding_to_char(encoding) || ' ' || datlocprovider::text || ' ' || datlocale"
        " FROM pg_database WHERE datname = current_database()",
    ) == ("UTF8 b C.UTF-8")


def test_it_listens_on_loopback_only(server: EmbeddedPostgres, folder: Path) -> None:
    """There is one TCP address, 127.0.0.1, and no socket file."""
    _, _, _, port, sockets, host, *_ = (
        (folder / "postgres" / "postmaster.pid").read_text().splitlines()
    )

    assert (sockets, host) == ("", "127.0.0.1")
    assert f"@127.0.0.1:{port}/" in server.url


def test_its_files_are_closed_to_others(server: EmbeddedPostgres, folder: Path) -> None:
    """Nobody else can list the folder or read a file in it, and no parent was opened."""
    files = {path.name: mode(path) for path in folder.iterdir()}

    assert files == {
        "postgres": 0o700,
        "postgres.lock": 0o600,
        "postgres.log": 0o600,
        "postgres.password": 0o600,
    }
    assert mode(folder) == (0o711 if AS_ROOT else 0o700)
    assert mode(folder.parent) == 0o700


def test_neither_password_nor_statement_shows(server: EmbeddedPostgres, folder: Path) -> None:
    """Process titles and the log hold no password, no statement, no value."""
    password = (folder / "postgres.password").read_text().strip()
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE once (word text PRIMARY KEY)")
        connection.execute("INSERT INTO once VALUES ('zebra')")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("INSERT INTO once VALUES ('zebra')")

    server.stop()

    log = (folder / "postgres.log").read_text()
    assert "duplicate key" in log
    assert "zebra" not in log
    assert "INSERT" not in log
    assert password not in log


@only_linux
def test_nothing_of_the_caller_is_in_its_arguments(server: EmbeddedPostgres, folder: Path) -> None:
    """The command line names folders and settings, no password."""
    arguments = Path(f"/proc/{server.pid}/cmdline").read_text()

    assert (folder / "postgres.password").read_text().strip() not in arguments


@only_root
def test_under_root_it_runs_as_nobody_with_one_power_at_most(server: EmbeddedPostgres) -> None:
    """Behind closed folders it may pass them and has nothing else of root's."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines()
    )

    assert set(status["Uid"].split()) == {str(child_process.unprivileged_account().uid)}  # type: ignore[union-attr]
    assert {status[name].strip() for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {
        "0000000000000002"
    }


@only_root
def test_under_root_its_programs_may_lie_behind_closed_folders(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone that root made below a closed folder holds the virtual environment as well."""
    binaries = postgres._binary("postgres").parent
    package = binaries.parents[1]
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for part in package.parent.glob(f"{package.name}*"):  # its libraries lie beside it
        shutil.copytree(part, closed / part.name)
    copies = closed / binaries.relative_to(package.parent)
    monkeypatch.setattr(postgres, "_binary", lambda name: copies / name)

    with EmbeddedPostgres(folder, fsync=False) as server:
        assert value(server.url, "SELECT 1") == 1
    assert mode(closed) == 0o700
    assert (folder / "postgres.log").read_text().count("Permission denied") == 0


@only_root
def test_under_root_behind_open_folders_it_has_no_power_at_all(tmp_path: Path) -> None:
    """The power to pass closed folders is kept only where it is needed."""
    account = child_process.unprivileged_account()
    assert account is not None
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o700)

    assert child_process.can_reach(account, Path("/bin/sh"), Path("/"))
    assert not child_process.can_reach(account, Path("/bin/sh"), shut)
    shell = subprocess.run(
        ["/bin/sh", "-c", "grep CapEff /proc/self/status"],
        preexec_fn=child_process.at_start(account),
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout.split() == ["CapEff:", "0000000000000000"]


@only_root
def test_a_refused_power_is_one_line_with_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where root may not hand its power on, the operator is told what to open."""

    def refuse(_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(child_process, "_keep_only", refuse)

    with pytest.raises(CannotStart) as caught:
        EmbeddedPostgres(folder).start()

    binaries = postgres._binary("postgres").parent
    assert str(caught.value) == (
        f"PostgreSQL runs as user nobody, which cannot pass through to {folder} or to {binaries}: "
        "open these folders (chmod o+x), work as an ordinary user, "
        "or set LEDGER_URL to a PostgreSQL of yours"
    )


@only_root
def test_an_ordinary_user_can_start_it(tmp_path: Path) -> None:
    """Without root there is no change of user, and it simply works."""
    account = child_process.unprivileged_account()
    assert account is not None
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    os.chown(home, account.uid, account.gid)
    script = (
        "import sys, pathlib, psycopg\n"
        "from plugins.setup.postgres import EmbeddedPostgres\n"
        "with EmbeddedPostgres(pathlib.Path(sys.argv[1]), fsync=False) as server:\n"
        "    print(psycopg.connect(server.url).execute('SELECT 1').fetchone())\n"
    )

    result = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", script, home / "data"],
        cwd="/",
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.defpath},
        # So that it can read this checkout wherever it lies; the code under test sees a
        # plain user.
        preexec_fn=child_process.at_start(
            child_process.Account(account.uid, account.gid, reach=True)
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (result.stdout, result.stderr) == ("(1,)\n", "")
    assert mode(home / "data") == 0o700


def test_a_killed_server_comes_back_on_the_same_port(server: EmbeddedPostgres) -> None:
    """Whoever holds the address can go on after a crash of the server."""
    before = server.url
    with psycopg.connect(before) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1")
    assert server.pid is not None

    os.kill(server.pid, signal.SIGKILL)
    server.start()

    assert server.url == before
    assert value(server.url, "SELECT count(*) FROM kept") == 1


@only_linux
def test_a_killed_owner_takes_the_server_with_it(folder: Path) -> None:
    """After kill -9 of its owner the server stops by itself and the next start has the data."""
    script = (
        "import sys, time, pathlib\n"
        "from plugins.setup.postgres import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(pathlib.Path(sys.argv[1]), fsync=False)\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, folder], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
        owner.wait()
        with EmbeddedPostgres(folder, fsync=False) as server:
            assert value(server.url, "SELECT 1") == 1
            assert not is_running(pid)


def test_a_reused_process_id_does_not_bar_the_start(server: EmbeddedPostgres, folder: Path) -> None:
    """A pid file that names some other live process is a leftover."""
    server.stop()
    (folder / "postgres" / "postmaster.pid").write_text(f"{os.getpid()}\n/elsewhere\n")

    assert answers(server.start())


def test_an_initialisation_that_was_cut_off_is_begun_anew(folder: Path) -> None:
    """Only a whole cluster gets the name that counts."""
    half = folder / "postgres.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")

    with EmbeddedPostgres(folder, fsync=False) as server:
        assert value(server.url, "SELECT 1") == 1
    assert not half.exists()


def test_a_second_owner_is_turned_away(server: EmbeddedPostgres, folder: Path) -> None:
    """Two owners of one folder would end each other's server."""
    with pytest.raises(Busy) as caught:
        EmbeddedPostgres(folder).start()

    assert str(caught.value) == f"the embedded PostgreSQL's owner (process {os.getpid()})"
    assert value(server.url, "SELECT 1") == 1


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    """The reason is the system's, the remedy ours."""
    (tmp_path / "file").touch()

    with pytest.raises(CannotStart) as caught:
        EmbeddedPostgres(tmp_path / "file" / "data").start()

    assert str(caught.value) == (
        f"cannot write to {tmp_path}/file/data (Not a directory): "
        "give this user the folder, or name another one with WICKETGATE_DATA"
    )


def test_admin_takes_the_operators_database_first(folder: Path) -> None:
    """With LEDGER_URL set nothing is started and nothing is written."""
    with (
        pytest.raises(CannotStart, match="set but empty"),
        admin_ledger_url(folder, {"LEDGER_URL": ""}),
    ):
        pass
    with admin_ledger_url(folder, {"LEDGER_URL": "postgresql://elsewhere/ledger"}) as url:
        assert url == "postgresql://elsewhere/ledger"
    assert not folder.exists()


def test_admin_starts_the_database_for_one_command(folder: Path) -> None:
    """Without a running gateway a command starts the database and stops it again."""
    with admin_ledger_url(folder, {}) as url:
        assert answers(url)
    assert not answers(url)


def test_admin_uses_the_database_of_the_running_gateway(
    server: EmbeddedPostgres, folder: Path
) -> None:
    """While deploy/up runs, its server is used and left running."""
    lock = Lock(folder / "lock", "deploy/up")
    lock.acquire()
    write_state(folder, server.url)
    try:
        with admin_ledger_url(folder, {}) as url:
            assert url == server.url
        assert answers(url)
    finally:
        lock.release()


def test_admin_says_that_the_gateway_uses_another_database(folder: Path) -> None:
    """A command must not change a database that the running gateway does not read."""
    folder.mkdir()
    lock = Lock(folder / "lock", "deploy/up")
    lock.acquire()
    write_state(folder, None)
    try:
        with pytest.raises(CannotStart) as caught, admin_ledger_url(folder, {}):
            pass
    finally:
        lock.release()

    assert str(caught.value) == (
        "deploy/up runs on a database of its own (LEDGER_URL): "
        "set the same LEDGER_URL for this command"
    )


def test_admin_passes_over_what_a_killed_gateway_left(folder: Path) -> None:
    """An address whose writer no longer holds the folder is not believed."""
    folder.mkdir()
    write_state(folder, "postgresql://wicketgate:x@127.0.0.1:1/wicketgate")

    with admin_ledger_url(folder, {}) as url:
        assert answers(url)


def test_a_look_at_the_lock_leaves_no_trace(folder: Path) -> None:
    """A command that asks whether `deploy/up` runs neither makes its lock nor writes in it."""
    path = folder / "lock"
    folder.mkdir()

    assert not is_held(path)
    assert not path.exists()
    lock = Lock(path, "deploy/up")
    lock.acquire()
    written = path.read_bytes()
    assert is_held(path)
    lock.release()
    assert not is_held(path)
    assert path.read_bytes() == written
