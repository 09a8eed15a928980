"""Large arrays for the engine: aligned to cache lines, on huge pages where the system has them.

A decision touches a few numbers in each of many large arrays, so how often the processor must look up where a page lies
matters. Memory is taken from the system only when it is first written.
"""

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

CACHE_LINE = 64
HUGE_PAGE = 2 * 1024 * 1024


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of zeros that begins at a huge page if it is large, at a cache line if not."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    large = size >= HUGE_PAGE // 2
    unit = HUGE_PAGE if large else CACHE_LINE
    if large:
        pages = mmap.mmap(-1, size + HUGE_PAGE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages: ordinary ones will do
                pages.madvise(mmap.MADV_HUGEPAGE)
        buffer = np.frombuffer(pages, np.uint8)
    else:
        buffer = np.zeros(size + CACHE_LINE, np.uint8)
    start = -buffer.ctypes.data % unit
    return buffer[start : start + size].view(kind).reshape(shape)


def copy_of(rows: NDArray[np.void]) -> NDArray[np.void]:
    """A copy of rows."""
    copy = zeros(rows.shape, rows.dtype)
    copy[:] = rows
    return copy
