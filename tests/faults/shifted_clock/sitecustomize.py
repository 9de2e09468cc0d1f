"""On PYTHONPATH: the clock of every Python process is off by the seconds that the file $CLOCK_SHIFT holds."""

import os
import time

_true, _file = time.time, os.environ.get("CLOCK_SHIFT", "")


def _shifted() -> float:
    try:
        with open(_file) as file:
            return _true() + float(file.read() or 0)
    except OSError:
        return _true()


if _file:
    time.time = _shifted
