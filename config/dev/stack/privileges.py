"""Dropping of root privileges for a command: `python privileges.py UID GID COMMAND…`.

Postgres refuses to run as root, but its programs and data are in the project, which may be in a folder that only root
can enter (`mktemp -d`). Opening that folder, copying 40 MB of programs or storing the data elsewhere would leave traces
outside the project. So the command runs as `nobody` and keeps one capability: to traverse folders and to read. This is
why `user=` of subprocess is not enough.
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


def permitted() -> int:
    """Return the permitted capabilities of this process as bits."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["CapPrm"], 16)


def keep_capability(capability: int) -> bool:
    """Drop all capabilities but this one, and keep it across exec. Return whether that worked."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    bits = 1 << capability
    # Effective, permitted and inheritable, each in a low and a high half.
    data = (ctypes.c_uint32 * 6)(bits, bits, bits, 0, 0, 0)
    if libc.capset(header, data) != 0:
        return False
    return bool(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) == 0)


def main() -> None:
    uid, gid, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    # CAP_DAC_READ_SEARCH is enough; containers often drop it and keep the broader CAP_DAC_OVERRIDE.
    reach = next((cap for cap in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if permitted() >> cap & 1), None)
    # Without this bit, setresuid drops every capability, and access(2), which Postgres uses to find its programs,
    # ignores them.
    libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    # Root without capabilities continues: the folders may be accessible to all users.
    if reach is not None:
        keep_capability(reach)
    os.execv(command[0], command)  # noqa: S606  # the purpose of this script


if __name__ == "__main__":
    main()
