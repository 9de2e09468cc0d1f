"""Who may write a study in a bucket: one driver at a time, whatever machine it runs on (a file lock is its own).

`<study>/lease.<n>` names the driver that wrote last. It is made with "only if there is none", one step of S3's, and
then written again, with a beat, by its holder alone. Who finds no beat in `LOST_S` seconds, the last ones looking
on, takes over by making number n + 1, in which one of several is first. No two machines' clocks are compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import fsspec

from search.store.layout import StudyFolder, is_remote
from search.store.lock import StudyHeldError
from search.store.parts import there

BEAT_S = 10.0  # between two signs of life
LOST_S = 45.0  # without one: the holder is gone
LOOK_S = 2.0
SETTLE_S = 2.0  # in stores that cannot create a file only if there is none


@dataclass(frozen=True)
class Held:
    """What a lease says. number: grows; holder: for people; token: of the life; held: not given back."""

    number: int
    holder: str
    token: str
    beat: int = 0
    held: bool = True


class Lease:
    """This process's hold on a study; its methods may be called by several threads."""

    def __init__(self, folder: StudyFolder, mine: Held) -> None:
        self._folder, self._mine, self._beaten = folder, mine, time.monotonic()
        self._one = threading.Lock()

    def beat(self) -> bool:
        """Give a sign of life when one is due; False when another driver has taken the study over.

        Raises: what the store raises.
        """
        with self._one:
            if time.monotonic() - self._beaten >= BEAT_S:
                if (now := newest(self._folder)) is None or now.token != self._mine.token:
                    return False
                self._mine = replace(self._mine, beat=self._mine.beat + 1)
                _write(self._folder, self._mine)
                self._beaten = time.monotonic()
            return True

    def give_back(self) -> None:
        now = newest(self._folder)
        if now is not None and now.token == self._mine.token:
            _write(self._folder, replace(self._mine, held=False))


@contextlib.contextmanager
def lease(folder: StudyFolder, say: Callable[[str], object]) -> Iterator[Lease | None]:
    """Hold a study in a bucket, its working copy brought up to date; None for one on a disk, where `exclusive` does.

    The caller has `exclusive` already, so a lease of this working copy is one whose holder is dead. Args: say: gets a
    line when it takes a while. Raises: StudyHeldError when another machine runs it.
    """
    if not is_remote(folder.storage):
        yield None
        return
    held = Lease(folder, _take(folder, say))
    try:
        yield held
    finally:
        with contextlib.suppress(Exception):  # a store in trouble: the next driver waits `LOST_S`
            held.give_back()


def newest(folder: StudyFolder) -> Held | None:
    """The lease that counts."""
    found = _newest(folder)
    return found[0] if found else None


def last_sign(folder: StudyFolder) -> tuple[str, float] | None:
    """For those who only look: (who holds a study, seconds since its last sign of life); None where nobody does.

    The seconds are this machine's clock against the bucket's.
    """
    if not is_remote(folder.storage) or (found := _newest(folder)) is None or not found[0].held:
        return None
    return found[0].holder, max(0.0, time.time() - found[1])


def _newest(folder: StudyFolder) -> tuple[Held, float] | None:
    """The lease that counts, and when it was written, in seconds since 1970 by the bucket's clock."""
    filesystem, root = fsspec.core.url_to_fs(folder.uri)
    names = [name for name in there(filesystem, f"{root}/lease") if not name.endswith("/lease")]
    if not names:
        return None
    return Held(**json.loads(filesystem.cat_file(names[-1]))), filesystem.modified(names[-1]).timestamp()


def _silent(folder: StudyFolder) -> float:
    """Seconds since the last sign of life, both times by the bucket's clock."""
    filesystem, root = fsspec.core.url_to_fs(folder.uri)
    if (found := _newest(folder)) is None:
        return 0.0
    mark = f"{root}/looked.{secrets.token_hex(4)}"
    filesystem.pipe_file(mark, b"")
    try:
        now: float = filesystem.modified(mark).timestamp()
        return max(0.0, now - found[1])
    finally:
        filesystem.rm_file(mark)


def _take(folder: StudyFolder, say: Callable[[str], object]) -> Held:
    before = newest(folder)
    if before is not None and before.held and before.token != folder.writer():
        look = max(LOST_S - _silent(folder), BEAT_S + LOOK_S)  # however long it was silent, one beat is waited for
        say(f"study {folder.study} was last run by {before.holder}: looking {look:.0f} s whether it still is")
        until = time.monotonic() + look
        while time.monotonic() < until and (now := newest(folder)) == before:
            time.sleep(LOOK_S)
        if now != before and now is not None and now.held:
            raise StudyHeldError(f"study {folder.study} is being run by {now.holder}; see `search status`")
        before = now
    number = before.number + 1 if before is not None else 1
    mine = Held(number, f"{socket.gethostname()} (process {os.getpid()})", secrets.token_hex(8))
    _create(folder, mine)
    folder.pull()
    folder.set_writer(mine.token)
    filesystem, root = fsspec.core.url_to_fs(folder.uri)
    for name in there(filesystem, f"{root}/lease"):
        if int(name.rsplit(".", 1)[-1]) < number:
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm_file(name)
    return mine


def _create(folder: StudyFolder, mine: Held) -> None:
    try:
        _write(folder, mine, mode="create")
    except FileExistsError:
        raise StudyHeldError(f"study {folder.study} has just been taken by another process") from None
    except (NotImplementedError, OSError):  # a store without that: the last of several that write is the one
        _write(folder, mine)
        time.sleep(SETTLE_S)
        if (now := newest(folder)) is None or now.token != mine.token:
            raise StudyHeldError(f"study {folder.study} has just been taken by another process") from None


def _write(folder: StudyFolder, what: Held, mode: str = "overwrite") -> None:
    filesystem, root = fsspec.core.url_to_fs(folder.uri)
    filesystem.pipe_file(f"{root}/lease.{what.number:015d}", json.dumps(asdict(what)).encode(), mode=mode)
