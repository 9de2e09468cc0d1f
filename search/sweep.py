"""Keeping the disk bounded: whose checkpoints stay, what of the others goes."""

from __future__ import annotations

import heapq
from statistics import fmean

from search.journal import Ledger, RunState
from search.layout import StudyFolder

WEIGHTS = "best/weights.safetensors"
LAST = "last"


class Sweeper:
    """Deletes the weights of ended trials that are not among the `keep` best, and the last states of all ended ones.

    All seeds of the best confirmed point stay too.

    Similarities and `trial.json` stay. A pruned trial writes its checkpoint only when its process gets the next trial,
    so what is not there yet is looked for again at the next sweep, and a last time after all processes have ended.
    """

    def __init__(self, folder: StudyFolder, ledger: Ledger, keep: int) -> None:
        self._folder, self._ledger, self._keep = folder, ledger, keep
        self._clean: set[str] = set()  # nothing is left to delete there

    def kept(self) -> list[str]:
        """Ids of the trials whose weights stay, best first."""
        sign = 1.0 if self._ledger.maximise else -1.0
        ended = [s for s in self._ledger.runs.values() if not s.open and not s.failed and s.best is not None]
        best = heapq.nlargest(self._keep, ended, key=lambda s: sign * (s.best or 0.0))
        confirmed: dict[str, list[RunState]] = {}
        for state in ended:
            if state.run.stage == "confirm":
                confirmed.setdefault(state.run.point_id, []).append(state)
        if confirmed:  # `analysis test` and `export` want every seed of the confirmed best
            means = {point: sign * fmean(s.best or 0.0 for s in states) for point, states in confirmed.items()}
            best += [s for s in confirmed[max(means, key=means.__getitem__)] if s not in best]
        return [s.run.id for s in best]

    def sweep(self, final: bool = False) -> None:
        """Delete what may go. Args: final: no trial process is alive, so what is missing now will not come."""
        kept = set(self.kept())
        for trial_id, state in self._ledger.runs.items():
            if state.open or trial_id in self._clean or (trial_id in kept and not final):
                continue
            folder = self._folder.trial(trial_id)
            self._folder.delete(f"{folder}/{LAST}")
            if trial_id not in kept and (self._folder.delete(f"{folder}/{WEIGHTS}") or final):
                self._clean.add(trial_id)
