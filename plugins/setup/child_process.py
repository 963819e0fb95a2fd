"""How a child process starts: as whom, and what ends it when its parent is gone."""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Linux: <sys/prctl.h>, <linux/securebits.h> and <linux/capability.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE = 1

_LINUX = sys.platform == "linux"
# Loaded here: between fork and exec is no time for a dynamic loader.
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None


@dataclass(frozen=True, slots=True)
class Account:
    """A user to run a child as.

    Attributes:
        reach: Keep root's power to pass closed folders, and nothing else of root's.
    """

    uid: int
    gid: int
    reach: bool = False


def unprivileged_account() -> Account | None:
    """Return the account that root runs a database as; None when we are not root."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return Account(entry.pw_uid, entry.pw_gid)


def can_reach(account: Account, program: Path, folder: Path) -> bool:
    """Tell whether *account* may run *program* and pass through *folder*: the kernel's word."""
    probe = subprocess.run(
        ["/bin/sh", "-c", 'test -x "$1" && test -x "$2"', "sh", program, folder],
        preexec_fn=at_start(account),
        cwd="/",
        check=False,
    )
    return probe.returncode == 0


def at_start(
    account: Account | None = None, *, when_orphaned: signal.Signals = signal.SIGTERM
) -> Callable[[], None]:
    """Return a `preexec_fn`: become *account*; get *when_orphaned* when the parent dies.

    The kernel sends the signal when the *thread* that started the child ends: start children
    from the main thread. Without Linux there is no such signal, and the child outlives a
    parent that was killed.
    """
    parent = os.getpid()

    def prepare() -> None:
        if account is not None:
            _become(account)
        if _libc is not None:
            # After the change of user, which clears it.
            _prctl(_PR_SET_PDEATHSIG, int(when_orphaned))
            if os.getppid() != parent:
                os._exit(1)

    return prepare


def _become(account: Account) -> None:
    if account.reach:
        # Otherwise the change of user drops every capability, and access(2), by which initdb
        # looks for its server, goes on to ignore the one we keep.
        _prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP)
    os.setgroups([account.gid])
    os.setgid(account.gid)
    os.setuid(account.uid)
    if account.reach:
        _keep_only(_CAP_DAC_OVERRIDE)


def _keep_only(capability: int) -> None:
    """Drop every capability but one, and hand that one on through exec."""
    if _libc is None:
        raise OSError("capabilities are Linux's")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    bit = 1 << capability
    # effective, permitted, inheritable; then the same for capabilities 32 to 63
    data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    if _libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def _prctl(option: int, *values: int) -> None:
    if _libc is None:
        raise OSError("not available on this system")
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *padded) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def working_in(folder: Path, suspect: int | None) -> list[int]:
    """Return the live processes that work in *folder*; a zombie is not alive.

    Args:
        suspect: The only process to ask about where the system has no /proc.
    """
    if not _LINUX:
        return [suspect] if suspect is not None and _runs_postgres(suspect) else []
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # gone meanwhile, or another user's
                if (entry / "cwd").readlink() == folder and not _is_zombie(entry):
                    found.append(int(entry.name))
    return found


def _is_zombie(process: Path) -> bool:
    # The command's name is in parentheses and may hold anything; the state follows it.
    return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"


def _runs_postgres(pid: int) -> bool:
    listing = subprocess.run(
        ["/bin/ps", "-o", "stat=,comm=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return "postgres" in listing and not listing.startswith("Z")
