"""A Ray of our own: closed to other machines, shielded from the terminal's signals, cleaned up at the end.

Ray's processes get a session of their own, so that a signal to our process group (a closing terminal, SLURM,
Kubernetes) reaches the driver alone, which then has the trials save their state. They still end with the driver:
the kernel kills them when it has ended for any reason (Ray sets PR_SET_PDEATHSIG). The signals that end a
search (Ctrl-C, and what schedulers and closing terminals send) are handled here too, since Ray takes SIGTERM.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from search.store.layout import UserError
from trainables.contract.errors import first_line
from trainables.contract.limits import cores

if TYPE_CHECKING:
    from ray.job_config import JobConfig

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray's word for: this node's address is 127.0.0.1
STORE_BYTES = 256 * 2**20  # trials exchange a few numbers
YOUNG_S = 60.0  # between a folder's creation and its lock
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
TRIES = 2  # on a loaded machine Ray's own start can time out


@contextlib.contextmanager
def private_ray() -> Iterator[None]:
    """Start Ray, connect to it, end it. `LOOPBACK` is in the environment since before ray was imported.

    Raises: UserError when Ray does not start, tried twice.
    """
    import ray

    parent = _parent()
    clear(parent)
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        with FileLock(folder / "driver.lock"), own_token():
            for attempt in range(1, TRIES + 1):
                try:
                    _init(folder / "ray")
                    break
                except Exception as error:  # a start that timed out raises many things
                    with contextlib.suppress(Exception):
                        ray.shutdown()
                    if attempt == TRIES:
                        raise UserError(
                            f"Ray does not start on this machine (tried {TRIES} times): {first_line(error)}"
                        ) from error
            try:
                yield
            finally:
                leave_ray()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def leave_ray() -> None:
    """Disconnect from Ray, and end what it started.

    Tune leaves references to Ray's objects in cycles. One that the garbage collector meets while the connection closes,
    in whatever thread that happens, ends the process on the spot with exit code 1 ("accesses the Ray's worker after it
    is shutdown", Ray 2.60), so they are freed before.
    """
    import ray

    gc.collect()
    ray.shutdown()


class _Fixed(list[str]):
    """A list that Ray does not extend."""

    def extend(self, _: Iterable[str]) -> None:
        pass


def job_config(private: bool) -> JobConfig:
    """Ray's workers import from where this process does; those of a `private` Ray, last, from the working folder.

    Ray itself puts the driver's working folder first on the path of every worker. A user's `trainables` or `random.py`
    there would hide the real one.
    """
    from ray.job_config import JobConfig

    here, script = os.getcwd(), os.path.dirname(os.path.realpath(sys.argv[0]))
    path = [os.path.abspath(folder) for folder in sys.path if os.path.exists(folder or here)]  # "" is `here`
    ours = str(Path(__file__).parents[2])  # an editable install is not on the path
    inserted = [here, ours, *reversed(path)] if private else [folder for folder in (script, here) if folder in path]
    return JobConfig(_py_driver_sys_path=_Fixed(inserted))  # Ray inserts one after the other in front


def _init(folder: Path) -> None:
    import ray

    shutil.rmtree(folder, ignore_errors=True)
    with own_session(), signal_handlers_restored():
        ray.init(
            num_cpus=cores(),  # Ray itself counts the machine's, whatever this process is bound to
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=STORE_BYTES,
            job_config=job_config(private=True),
            _temp_dir=str(folder),
        )


@contextlib.contextmanager
def own_token() -> Iterator[None]:
    """Ray processes started inside use a token of their own, unless the user set one; the token is removed at the end.

    Without it Ray writes one into the home folder, readable by other users. A process that ran another Ray before (a
    notebook) has cached that one's token: the cache is reset, or Ray would reject every connection.
    """
    if os.environ.get("RAY_AUTH_MODE", "token") != "token" or "RAY_AUTH_TOKEN" in os.environ:
        yield
        return
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    _reset_token_cache()
    try:
        yield
    finally:
        os.environ.pop("RAY_AUTH_TOKEN", None)
        _reset_token_cache()


def _reset_token_cache() -> None:
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # no public way; guarded by a test

    AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def own_session() -> Iterator[None]:
    """Ray processes started inside belong to a session (and process group) of their own."""
    from ray._private import services  # no public way; guarded by a test

    plain = services.ConsolePopen
    services.ConsolePopen = functools.partial(plain, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = plain


def clear(parent: Path) -> None:
    """Remove what killed drivers left in `parent`: a folder whose lock is free and that is not just being made."""
    for folder in parent.iterdir():
        with contextlib.suppress(Timeout, OSError):
            if time.time() - folder.stat().st_mtime > YOUNG_S:
                with FileLock(folder / "driver.lock", timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    """Where Ray's temporary folders are: short, for they hold sockets; ours alone, for Ray's are open to all."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    parent = Path("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()) / f"search-{user}"
    parent.mkdir(mode=0o700, exist_ok=True)
    if parent.stat().st_uid != user:
        raise UserError(f"{parent}: belongs to another user; Ray's sockets would not be safe there")
    parent.chmod(0o700)
    return parent


class Interrupted(KeyboardInterrupt):
    """A signal that ends the program now; `number` gives its exit code, 128 + number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def handled(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """`handle(signal)` is called for the ending signals; nothing changes outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def caught(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signal module's interface
        leave_lost_terminal()
        handle(signal.Signals(number))

    before = {number: signal.signal(number, caught) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_lost_terminal() -> None:
    """Print nowhere from here on where the terminal is gone (after SIGHUP): writing to it raises, in the middle of
    closing the study."""
    for number in (0, 1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, number)
                os.close(null)


@contextlib.contextmanager
def signal_handlers_restored() -> Iterator[None]:
    """Restores the handlers of the ending signals: Ray replaces SIGTERM's while it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    except SystemExit as stop:  # Ray's answer to SIGTERM
        if stop.code == signal.SIGTERM:
            raise Interrupted(signal.SIGTERM) from stop
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_at_once(number: signal.Signals) -> None:
    """Raise what ends the program, cleaning up on its way out."""
    raise Interrupted(number)
