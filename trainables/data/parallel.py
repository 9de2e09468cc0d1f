"""Long per-sentence work on a corpus: cut into chunks, spread over processes, with progress."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from trainables.contract.trial import phase

A = TypeVar("A")
R = TypeVar("R")
Progress = Callable[[int, int], None]  # (sentences done, sentences in all)

logger = logging.getLogger(__name__)
LOG_SECONDS = 10.0  # without a terminal: at most one progress line in this time


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_chunks(
    work: Callable[[A], R], chunks: Sequence[A], sizes: Sequence[int], processes: int, progress: Progress | None = None
) -> list[R]:
    """`[work(c) for c in chunks]`, in that order, on up to `processes` processes.

    Args:
        work: a module-level function (it travels to the processes by name).
        chunks: its inputs; sizes: sentences in each, for `progress`.
        processes: 1 = in this process. More are started afresh ("spawn"): a copy of a process that already runs torch's
            threads may hang, and a trial's process does run them.
    """
    total, done, results = sum(sizes), 0, []

    def collect(found: Iterator[R]) -> None:
        nonlocal done
        for size, result in zip(sizes, found, strict=True):
            results.append(result)
            done += size
            if progress is not None:
                progress(done, total)

    processes = min(processes, len(chunks))
    if processes <= 1:
        collect(map(work, chunks))
    else:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            collect(pool.map(work, chunks))
    return results


@contextmanager
def progress_shown(title: str) -> Iterator[Progress]:
    """A progress callback: a bar when standard error is a terminal, else a log line now and then."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True)) as bar:
            task = bar.add_task(title)

            def draw(done: int, total: int) -> None:
                phase(title, done, total)
                bar.update(task, completed=done, total=total)

            yield draw
        return
    start = last = time.monotonic()

    def log(done: int, total: int) -> None:
        nonlocal last
        phase(title, done, total)
        now = time.monotonic()
        if done == total or now - last >= LOG_SECONDS:
            last = now
            rate = done / max(now - start, 1e-9)
            logger.info("%s: %s of %s sentences, %s a second", title, f"{done:,}", f"{total:,}", f"{rate:,.0f}")

    yield log
