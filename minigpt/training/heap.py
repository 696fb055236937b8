"""What glibc does with the memory that a step on a CPU frees.

Elsewhere these functions do nothing.
"""

import contextlib
import ctypes

#: Options of `mallopt`, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: What another C library, or another system, answers with.
_ABSENT = (OSError, AttributeError, TypeError)


def keep_freed_memory(*, keep: bool) -> None:
    """Let glibc keep what a step frees for the next one, or (`keep` False) no large block of it.

    By default it gives large blocks back to the system at once, which then has to clear each page
    of them again: tens of thousands of page faults a step at `model=small` on a CPU. Kept, the
    blocks leave holes that others do not fit into: time is paid for with memory.
    """
    with contextlib.suppress(*_ABSENT):
        mallopt = ctypes.CDLL(None).mallopt
        if not keep:
            mallopt(M_MMAP_THRESHOLD, 2**20)
        # older versions take no more than 32 MiB
        elif mallopt(M_MMAP_THRESHOLD, 2**31 - 1) or mallopt(M_MMAP_THRESHOLD, 2**25):
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_back_freed_memory() -> None:
    """Let glibc give what is free in its heap back to the system, before another kind of work.

    A validation needs blocks of other sizes than a step: kept beside each other, the two take the
    room of both.
    """
    with contextlib.suppress(*_ABSENT):
        ctypes.CDLL(None).malloc_trim(0)
