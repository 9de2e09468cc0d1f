"""Disk use within bounds: which checkpoints stay, and what is deleted of the rest."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial
from statistics import fmean

from search.store.layout import StorageError, StudyFolder
from search.store.ledger import Ledger, TrialRecord
from trainables.contract.errors import first_line
from trainables.contract.trial import CHECKPOINT, LAST


class CheckpointRetention:
    """Deletes the weights of ended trials that are not among the `keep` best, and the last states of all ended ones.

    What `analysis test` and `export` need stays too: while points are being confirmed every seed of them, afterwards
    every seed of the best one and of the baseline (of the baseline in the search, where nothing was confirmed). The
    best trials that wait at their rungs keep their states, as many as fit into `states_gb` GB; the rest start again
    from their seeds if they are promoted.

    Similarities and `trial.json` stay. A pruned trial writes its checkpoint only when its process gets the next trial,
    so a missing one is checked again the next time, and a last time after all processes have ended.

    Args: owned: whether this process may write the study now; called before each deletion.
    """

    def __init__(
        self,
        folder: StudyFolder,
        ledger: Ledger,
        keep: int,
        states_gb: float = math.inf,
        owned: Callable[[], bool] = lambda: True,
    ) -> None:
        self._folder, self._ledger, self._keep, self._owned = folder, ledger, keep, owned
        self._states = states_gb * 1e9
        self._sizes: dict[tuple[str, int], int] = {}  # (paused trial, level) -> bytes of its state and checkpoint
        self._clean: set[str] = set()  # nothing is left to delete there

    def kept(self) -> list[str]:
        """Ids of the trials whose weights stay, best first."""
        sign = self._ledger.sign
        ended = [s for s in list(self._ledger.trials.values()) if not s.open and not s.failed and s.best is not None]
        best = heapq.nlargest(self._keep, ended, key=lambda s: sign * (s.best or 0.0))
        confirmed: dict[int, list[TrialRecord]] = {}
        for record in ended:
            if record.trial.stage == "confirm":
                confirmed.setdefault(record.trial.number, []).append(record)
        most = max(map(len, confirmed.values()), default=0)  # the analysis names none with less than half as many seeds
        covered = {point: records for point, records in confirmed.items() if len(records) >= most / 2}
        means = {point: sign * fmean(s.best or 0.0 for s in records) for point, records in covered.items()}
        leader = max(means, key=means.__getitem__, default=None)
        confirming = self._ledger.stages.get("confirm", "finished") != "finished"
        for number, records in confirmed.items():
            if confirming or number == leader or records[0].trial.baseline:
                best += records
        if not any(s.trial.baseline for records in confirmed.values() for s in records):
            best += [s for s in ended if s.trial.baseline]
        return list(dict.fromkeys(s.trial.id for s in best))

    def saved(self) -> list[str]:
        """Those of `kept` whose weights are on disk: a script need not write any."""
        try:
            return [
                t for t in self.kept() if any(self._folder.size(f"{self._folder.trial(t)}/{c}") for c in CHECKPOINT)
            ]
        except Exception:  # a failing store does not prove that any is missing
            return self.kept()

    def apply(self, final: bool = False) -> str:
        """Delete what may go. Args: final: no trial process is alive, so what is missing now will not come.

        Returns: why something could not be deleted (a process still writes there, a store in trouble), else "". It is
        tried again the next time.
        """
        kept = set(self.kept())
        trouble = self._tried(self._bound_states)
        for trial_id, record in list(self._ledger.trials.items()):
            if record.open or trial_id in self._clean or (trial_id in kept and not final):
                continue
            trouble = self._tried(partial(self._clear, trial_id, trial_id in kept, final)) or trouble
        return trouble

    def _tried(self, delete: Callable[[], None]) -> str:
        try:
            delete()
        except Exception as error:  # stores raise what they like; nothing of it may reach the search
            return first_line(error)
        return ""

    def _clear(self, trial_id: str, stays: bool, final: bool) -> None:
        folder = self._folder.trial(trial_id)
        self._delete(f"{folder}/{LAST}")
        if not stays and (self._drop_checkpoint(folder) or final):
            self._clean.add(trial_id)

    def _bound_states(self) -> None:
        """Delete the states of paused trials that do not fit, from the least promising on."""
        sign, taken = self._ledger.sign, 0
        paused = [(r, r.waiting) for r in self._ledger.waiting() if r.state == "paused" and r.waiting is not None]
        for record, level in sorted(paused, key=lambda pair: (-pair[1], -sign * pair[0].rungs[pair[1]])):
            folder, known = self._folder.trial(record.trial.id), (record.trial.id, level)
            if known not in self._sizes:
                self._sizes[known] = sum(self._folder.size(f"{folder}/{name}") for name in (LAST, *CHECKPOINT))
            taken += self._sizes[known]
            if taken > self._states and self._sizes[known]:
                taken -= self._sizes[known]
                self._sizes[known] = 0
                self._delete(f"{folder}/{LAST}")
                self._drop_checkpoint(folder)

    def _delete(self, path: str) -> bool:
        if not self._owned():
            raise StorageError("the study is not this process's to write now")
        return self._folder.delete(path)

    def _drop_checkpoint(self, folder: str) -> bool:
        """Whether there was one."""
        dropped = [self._delete(f"{folder}/{name}") for name in CHECKPOINT]
        return any(dropped)
