"""Starts a command as an unprivileged user who can still reach it: `python privileges.py UID GID COMMAND…`, as root.

Postgres refuses to run as root, but the programs and the data lie inside the project, which may well be in a folder
that only root can enter (`mktemp -d`). Opening that folder, copying 40 MB of programs or keeping the data elsewhere
would all leave traces outside the project, so the command keeps one capability of root's: to pass through folders and
to read. It is also why no OS user is made: `nobody` will do.
"""

import ctypes
import os
import sys
from pathlib import Path

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
PR_SET_SECUREBITS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 28, 47, 2
SECBIT_NO_SETUID_FIXUP = 1 << 2
CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def held() -> int:
    """Return our permitted capabilities as bits."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["CapPrm"], 16)


def keep_reach(capability: int) -> bool:
    """Reduce our capabilities to this one and have it survive exec. Returns whether that worked."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    bits = 1 << capability
    # Effective, permitted and inheritable, each in a low and a high half.
    data = (ctypes.c_uint32 * 6)(bits, bits, bits, 0, 0, 0)
    if libc.capset(header, data) != 0:
        return False
    return bool(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) == 0)


def main() -> None:
    uid, gid, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    # Reading is all that is needed; containers often take that capability away and leave the wider one.
    reach = next((cap for cap in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if held() >> cap & 1), None)
    # Without this bit the change of user drops every capability, and access(2), by which Postgres looks for its
    # programs, answers as if we had none.
    libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    # Root without capabilities is not stopped here: the folders may be open to all.
    if reach is not None:
        keep_reach(reach)
    os.execv(command[0], command)  # noqa: S606  # that is its purpose


if __name__ == "__main__":
    main()
