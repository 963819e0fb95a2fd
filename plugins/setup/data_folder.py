"""The folder that holds what one gateway keeps on disk: `.data/`, or WICKETGATE_DATA.

Two locks live in it, and the kernel drops both when their holder dies: `lock` is held by
`deploy/up`, `postgres.lock` by whoever runs the embedded server.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POLL_INTERVAL = 0.1  # seconds
STATE_FILE = "ledger.json"


class CannotStart(Exception):
    """One line for the operator: what is wrong, and what to do about it."""


class Busy(CannotStart):
    """Somebody else holds the lock."""


def data_folder(environ: Mapping[str, str]) -> Path:
    """Return where the data of this checkout goes, as an absolute path."""
    return Path(environ.get("WICKETGATE_DATA") or ROOT / ".data").resolve()


def prepare(folder: Path) -> None:
    """Make *folder*; only its owner may list it.

    Root's may be passed through by others, because the database in it runs as another user;
    every file in it is closed to them.
    """
    try:
        folder.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CannotStart(
            f"cannot write to {folder} ({error.strerror}): give this user the folder, "
            "or name another one with WICKETGATE_DATA"
        ) from None


def write_private(path: Path, text: str) -> None:
    """Write *text* so that nobody but the owner can read it and no reader sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def kept_secret(path: Path, start: str = "") -> str:
    """Return the secret kept in *path*; make 256 random bits the first time."""
    with suppress(FileNotFoundError):
        if kept := path.read_text().strip():
            return kept
    secret = start + secrets.token_urlsafe(32)
    write_private(path, secret + "\n")
    return secret


class Lock:
    """An advisory lock on one file, with the holder's name in it."""

    def __init__(self, path: Path, holder: str) -> None:
        self._path = path
        self._holder = holder
        self._file: int | None = None

    def acquire(self, wait: float = 0) -> None:
        """Take the lock within *wait* seconds.

        Raises:
            Busy: Its holder, as text, when it is still held after that.
        """
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    holder = os.pread(self._file, 200, 0).decode(errors="replace").strip()
                    self.release()
                    raise Busy(holder or "another process") from None
                time.sleep(POLL_INTERVAL)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{self._holder} (process {os.getpid()})\n".encode(), 0)

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def is_held(path: Path) -> bool:
    """Tell whether somebody holds the lock on *path*; the file is only looked at."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def write_state(folder: Path, ledger_url: str | None) -> None:
    """Tell `deploy/admin` which database `deploy/up` runs on; None: the operator's own."""
    write_private(folder / STATE_FILE, json.dumps({"ledger_url": ledger_url}))


def clear_state(folder: Path) -> None:
    (folder / STATE_FILE).unlink(missing_ok=True)


def read_state(folder: Path) -> tuple[bool, str | None]:
    """Return whether there is a state file, and the address in it."""
    try:
        state = json.loads((folder / STATE_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return False, None
    return True, state.get("ledger_url")
