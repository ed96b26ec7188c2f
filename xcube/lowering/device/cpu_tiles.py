"""Leave to use the processor's tiles: Linux gives their state, which is large, only to processes
that ask for it, once and for all of their threads."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

_ARCH_PRCTL = 158  # number of the system call on x86-64
_REQUEST_PERMISSION = 0x1023  # ARCH_REQ_XCOMP_PERM
_TILE_DATA = 18  # number of the state


@functools.cache
def allowed() -> bool:
    """Whether threads of this process may use tiles, which is asked for at the first call."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    system_call = ctypes.CDLL(None).syscall
    system_call.restype = ctypes.c_long
    arguments = (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    return system_call(*map(ctypes.c_long, arguments)) == 0
