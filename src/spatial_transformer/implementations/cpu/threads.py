"""Threads: PyTorch's own, by the OpenMP library that it has loaded.

Others would meet its threads spinning after their last work (4 ms on two cores of an EPYC, torch 2.13), and
Numba's layers either do not survive a fork or abort when two threads meet.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from .plan import CALL, Planned

SMALL = 16384  # output elements that are not worth waking another thread for


def _openmp() -> Any:
    """GOMP_parallel(function, data, threads, flags), which LLVM's and Intel's libraries have too; or None."""
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


_parallel = _openmp()
_pool: ThreadPoolExecutor | None = None
_pool_threads = 0
_pool_lock = threading.Lock()


def _after_fork() -> None:
    """OpenMP's threads are not in a forked child, and it does not know; nor are those of a pool."""
    global _parallel, _pool, _pool_lock
    _parallel, _pool, _pool_lock = None, None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def spread(worker: Any, plan: Planned, places: tuple[int, ...], items: int, work: int) -> None:
    """Runs a kernel over its items, on as many threads as PyTorch may use."""
    threads = min(torch.get_num_threads(), items) if work > SMALL else 1
    memory = torch.empty(plan.words * threads, dtype=torch.float64)
    call = CALL(0, items, memory.data_ptr(), plan.place, *places)
    if threads <= 1:
        worker.ctypes(ctypes.addressof(call))
    elif _parallel is not None:
        _parallel(worker.address, call, threads, 0)
    else:
        _in_pool(worker.ctypes, ctypes.addressof(call), threads)


def _in_pool(function: Callable[[Any], None], call: Any, threads: int) -> None:
    global _pool, _pool_threads
    waiting: list[Future[None]] = []
    with _pool_lock:
        if _pool is None or _pool_threads < threads - 1:
            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool, _pool_threads = ThreadPoolExecutor(threads - 1), threads - 1
        with contextlib.suppress(RuntimeError):  # no new threads while the interpreter shuts down
            waiting += [_pool.submit(function, call) for _ in range(threads - 1)]
    function(call)
    for future in waiting:
        future.result()
