"""Processes that a test reads or ends; one that ends before it is read is left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def below(pid: int, *titles: str) -> list[psutil.Process]:
    """Descendants of a process that run and have one of `titles` in their name or title (none given: all)."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                words = [process.name(), *process.cmdline()[:1]]
                if not titles or any(title in word for title in titles for word in words):
                    found.append(process)
    return found


def sigkill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to each."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
