"""How a session of a study ended, and what is printed of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from search.remote.servers import out_of_reach
from search.schema import SQLITE, masked, tracking_uri
from search.space import Space
from search.store.layout import CLUSTER_FILE, StudyFolder, storage_option
from search.store.ledger import Ledger, TrialRecord
from search.study.driver import Status
from search.wording import best_trials, go_on, headline, open_work, trial_line

ENDINGS: dict[Status, str] = {
    "finished": "is finished",
    "out_of_budget": "has used up its budget",
    "failed": "has failed",
    "interrupted": "is paused",
}


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """How a session of a study ended.

    Attributes:
        space: what was searched.
        folder: of the study.
        status: finished, out_of_budget, interrupted or failed.
        exit_code: 0 done, 1 too many trials failed or none was completed or pruned, 128 + the signal that paused it
            (130 for Ctrl-C).
        reason: why it ended before its last point, else "".
        ledger: every trial and every point.
        saved: ids of the trials whose weights are on disk, best first.
        frequent_reasons: of failures, with their counts, most frequent first.
        tracking_uri: of the MLflow store.
        trouble: why the storage or MLflow is not up to date, else "".
        link: the study's view in the MLflow UI, for a served store.
        address: of the running Ray cluster that the session was given.
    """

    space: Space
    folder: StudyFolder
    status: Status
    exit_code: int
    reason: str
    ledger: Ledger
    saved: Sequence[str] = ()
    frequent_reasons: Sequence[tuple[str, int]] = ()
    tracking_uri: str = ""
    trouble: str = ""
    link: str | None = None
    address: str | None = None

    @property
    def study(self) -> str:
        """The study's name."""
        return self.folder.study

    @property
    def best(self) -> TrialRecord | None:
        return self.ledger.best

    @property
    def storage_option(self) -> str:
        """` --storage ...` (on a cluster ` --cluster ...`) as the commands need it, empty for the default storage."""
        return storage_option(self.folder.storage)

    @property
    def tracking_option(self) -> str:
        """` --tracking-uri ...` as `analysis` needs it, empty for the default store."""
        uri = self.tracking_uri
        return "" if uri == tracking_uri() or out_of_reach(uri) else f" --tracking-uri {shlex.quote(masked(uri))}"


def address_option(address: str | None) -> str:
    """` --address ...` as the next command needs it; empty without one, and on a cluster that is followed from a laptop
    (CLUSTER_FILE is set)."""
    return f" --address {shlex.quote(address)}" if address and CLUSTER_FILE not in os.environ else ""


def _answer(result: StudyResult) -> str:
    """The command for the answer. Where a laptop follows a cluster, `search ui` gives it the MLflow of the head."""
    command, uri = f"analysis best {result.study}", result.tracking_uri
    if out_of_reach(uri) or (CLUSTER_FILE in os.environ and uri.startswith(SQLITE)):
        return f"search ui{result.storage_option}, then {command} with the MLFLOW_TRACKING_URI that it prints"
    return command + result.tracking_option


def closing_lines(result: StudyResult) -> list[str]:
    """What is printed at the end of a session: its outcome, the best trials, where the results are, how to continue."""
    space, ledger, study = result.space, result.ledger, result.folder.study
    stage = "confirm" if any(s.trial.stage == "confirm" for s in ledger.trials.values()) else "search"
    options = f"{result.storage_option}{address_option(result.address)}"
    lines = [f"study {study} {ENDINGS[result.status]}" + (f": {result.reason}" if result.reason else "")]
    if (result.status, result.exit_code) == ("finished", 1):
        lines[0] += f": no {'confirming ' if stage == 'confirm' else ''}trial came to its end"
    lines.append("  " + headline(space, ledger, 0))
    if left := open_work(space, ledger):
        lines.append(f"  still open: {left}")
    best = [s for s in best_trials(ledger, len(ledger.trials)) if not s.failed and s.trial.stage == stage][:3]
    lines += [f"  {trial_line(record, space)}" for record in best]
    if result.frequent_reasons:
        lines.append("  most frequent failures:")
        lines += [f"    {count} x {reason}" for reason, count in result.frequent_reasons]
    if result.trouble:
        command = f"search status {study}{result.storage_option}"
        lines.append(f"  the tracker is behind ({result.trouble}); `{command}` brings it up to date")
    if left or result.status in ("interrupted", "out_of_budget", "failed"):
        label = "extend:" if result.status == "out_of_budget" else "go on:"
        lines.append(f"  {label:<13} {go_on(space, ledger, study, options, result.reason)}")
    if stage == "search" and result.status in ("finished", "out_of_budget") and ledger.best is not None:
        lines.append(f"  confirm:      search confirm {study}{options}")
    lines.append(f"  answer:       {_answer(result)}")
    if result.saved:
        lines.append(f"  checkpoints:  {', '.join(result.saved)} in {result.folder.uri}/trials")
    if result.link:
        lines.append(f"  MLflow:       {result.link}")
    else:
        lines.append(f"  MLflow:       search ui {study}{result.storage_option}")
    return lines
