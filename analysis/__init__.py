"""Results of finished and running studies: `read` one, rank it with its uncertainty, plot it.

results = analysis.read("quickstart")
results.points[["trial", "value", "sd", "n"]].head()
results.best().gain
results.plot("history").savefig("history.png")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.api import StudyResults, read
    from analysis.errors import AnalysisError, InputError
    from analysis.statistics.verdict import Gain, Verdict

__all__ = ["AnalysisError", "Gain", "InputError", "StudyResults", "Verdict", "read"]

# Imported at first use: pandas and scipy take half a second that `analysis --help` need not wait.
_HOME = {
    "AnalysisError": "analysis.errors",
    "Gain": "analysis.statistics.verdict",
    "InputError": "analysis.errors",
    "StudyResults": "analysis.api",
    "Verdict": "analysis.statistics.verdict",
    "read": "analysis.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'analysis' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
