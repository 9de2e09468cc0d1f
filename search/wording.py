"""A study and its trials as plain text: on the console, in MLflow's notes, in `search status`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from search.schema import SHOWN_SCALE
from search.space import Space
from search.store.ledger import Ledger, TrialRecord

# Words in the reason of a spent budget -> its setting.
BUDGETS = {"time": "time", "device hours": "device_hours", "examples": "examples", "trials": "budget"}
LIKELY_Z = 1.28  # the middle 80 % of a normal distribution: the range of the time left


def headline(space: Space, ledger: Ledger, now: int) -> str:
    """`quickstart: 12 of 16 points, best stsb_dev 71.20 (t0007), 2 failed (oom), 3m10s, 1m to 2m left`.

    now: milliseconds since 1970; 0 where no driver runs the study: no time left is predicted.
    """
    done, total = len(ledger.tried), wanted_points(space)
    parts = [f"{done}{f' of {total}' if total else ''} points"]
    if (settings := _confirms(ledger)) is not None:
        records = [r for r in list(ledger.trials.values()) if r.trial.stage == "confirm"]
        # With a fixed plan the baseline, too.
        most = settings["trials"] if "trials" in settings else (settings["top"] + 1) * settings["seeds"]
        parts.append(f"confirming: {sum(not r.open for r in records)} of at most {most} trials")
    if ledger.best is not None:
        parts.append(f"best {space.metric.name} {number(ledger.best.best)} ({ledger.best.trial.id})")
    paused = sum(s.state == "paused" for s in list(ledger.open_trials.values()))
    parts += [f"{count} {stop}" for stop, count in (("pruned", ledger.stops["pruned"]), ("paused", paused)) if count]
    if (share := training_share(space, ledger)) is not None:
        kept = ", ".join(name for name in ledger.kept if name in ledger.open_trials and ledger.closed is None)
        parts.append(f"{min(1.0, share):.0%} of the training budget spent" + (f", the rest for {kept}" if kept else ""))
    if ledger.failed():
        parts.append(f"{ledger.failed()} failed ({counted(failed_kinds(ledger))})")
    if ledger.lost_nodes:
        parts.append(f"{ledger.lost_nodes} restart{'s' * (ledger.lost_nodes > 1)} after lost nodes")
    at_work = now if ledger.closed is None else None
    parts.append(duration(ledger.elapsed(at_work)))
    left = seconds_left(space, ledger, ledger.elapsed(at_work, "search"))
    if left is not None and ledger.closed is None and now:
        parts.append(f"{between(*left)} left")
    return f"{space.name}: " + ", ".join(parts)


def open_work(space: Space, ledger: Ledger) -> str:
    """What `resume` would take up: `4 of 12 points of the search, the confirming`; "" when there is nothing.

    Once patience is over, that is no new point: `2 trials of the search`; once another budget is spent, nothing.
    """
    parts = []
    mine = [record for record in ledger.open_trials.values() if record.trial.stage == "search"]
    waiting, patience = bool(mine), space.search.patience
    ended = ledger.stages.get("search")
    if patience is not None and ledger.since_best() >= patience and ended != "out_of_budget":
        if cut := sum(record.waiting is None for record in mine):
            parts.append(f"{cut} trial{'s' * (cut > 1)} of the search")
    elif ended not in ("finished", "out_of_budget") or (waiting and ended == "finished"):
        total = wanted_points(space)
        parts.append(f"{total - len(ledger.points)} of {total} points of the search" if total else "the search")
    if ledger.confirming and ledger.stages["confirm"] != "finished":
        parts.append("the confirming")
    return ", ".join(parts)


def _confirms(ledger: Ledger) -> Mapping[str, Any] | None:
    """The settings of the confirmation that runs (or crashed); None where there is none."""
    at_work = ledger.closed is None and ledger.stages.get("confirm") == "crashed" != ledger.stages.get("search")
    return ledger.confirming if at_work else None


def seconds_left(space: Space, ledger: Ledger, elapsed: float) -> tuple[float, float] | None:
    """The likely range (80 %) of the seconds to the end, within the time budget; elapsed: of the search's sessions.

    None before the first evaluation, and while points are confirmed. The cost of trials to come is estimated from those
    that have ended (before that, from the pace of those that run): the start of Ray does not count.
    """
    if _confirms(ledger) is not None:
        return None  # a confirmation without a fixed plan ends when its result is decided
    seen = [r for r in list(ledger.trials.values()) if r.trial.stage == "search" and r.examples and r.seconds]
    ranges = []
    if seen:
        running = [r for r in list(ledger.open_trials.values()) if r.state == "running"]
        found = (_by_trials(space, ledger, seen, running), _by_training(space, ledger, seen, running))
        ranges = [each for each in found if each]
    if space.search.time is not None:
        ranges.append((max(0.0, space.search.time - elapsed),) * 2)
    return (min(low for low, _ in ranges), min(high for _, high in ranges)) if ranges else None


def _by_trials(
    space: Space, ledger: Ledger, seen: Sequence[TrialRecord], running: Sequence[TrialRecord]
) -> tuple[float, float] | None:
    """Until the wanted points have all their seeds."""
    total = wanted_points(space)
    if total is None:
        return None
    costs = [r.seconds for r in seen if not r.open or r.waiting is not None]
    costs = costs or [r.seconds / r.examples * max(r.planned, r.examples) for r in seen]
    mean = statistics.fmean(costs)
    if space.pruner.kind == "asha":  # most paused points are never promoted
        to_start = total - len(ledger.tried) - sum(r.trial.number not in ledger.tried for r in running)
    else:
        in_points = sum(point["seeds"] for point in list(ledger.points.values()))
        to_start = (total - len(ledger.points)) * space.search.repeats - (ledger.ended() - in_points) - len(running)
    to_start = max(0, to_start)
    # a trial of unknown length counts as ended
    rest = [max(r.planned - r.examples, 0) * r.seconds / r.examples if r.examples else mean for r in running]
    slots = max(1, len(running))
    middle = max((to_start * mean + sum(rest)) / slots, max(rest, default=0.0))
    sd = statistics.stdev(costs) if len(costs) > 1 else mean / 2
    half = LIKELY_Z * sd * math.sqrt(to_start + len(rest) + (to_start + len(rest)) ** 2 / len(costs)) / slots
    return max(0.0, middle - half), middle + half


def _by_training(
    space: Space, ledger: Ledger, seen: Sequence[TrialRecord], running: Sequence[TrialRecord]
) -> tuple[float, float] | None:
    """Until the training budget is spent."""
    share = training_share(space, ledger)
    if not share:
        return None
    paces = [r.seconds / r.examples for r in seen]
    middle = ledger.examples * max(0.0, 1 / share - 1) * statistics.fmean(paces) / max(1, len(running))
    spread = statistics.stdev(paces) / statistics.fmean(paces) if len(paces) > 1 else 0.5
    half = LIKELY_Z * spread / math.sqrt(len(paces)) * middle
    return max(0.0, middle - half), middle + half


def between(low: float, high: float) -> str:
    """`about 4m10s`, or `3m to 5m` where the ends are apart."""
    if high - low <= 0.2 * high or duration(low) == duration(high):
        return f"about {duration((low + high) / 2)}"
    return f"{duration(low)} to {duration(high)}"


def training_share(space: Space, ledger: Ledger) -> float | None:
    """The spent share of the training budget, in [0, 1] (a little above at the end); None where there is none."""
    if space.search.budget is not None:
        return ledger.full_length_trials(ledger.examples) / space.search.budget
    return ledger.examples / space.search.examples if space.search.examples is not None else None


def wanted_points(space: Space) -> int | None:
    """The number of points of the whole study; None when only time, training or patience ends it."""
    known = [n for n in (space.search.trials, space.cardinality()) if n is not None]
    return min(known) if known else None


def failed_kinds(ledger: Ledger) -> dict[str, int]:
    """Kind of failure -> how many trials, most frequent first."""
    kinds = {stop.removeprefix("failed:"): n for stop, n in list(ledger.stops.items()) if stop.startswith("failed:")}
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))


def counted(kinds: Mapping[str, int]) -> str:
    """`2 oom, 1 nan`."""
    return ", ".join(f"{n} {kind}" for kind, n in kinds.items())


def best_trials(ledger: Ledger, count: int, *, paused: bool = False) -> list[TrialRecord]:
    """The best ended trials, best first, completed before pruned ones; failed ones last, in order of their end.

    Args: paused: list paused trials among the pruned ones.
    """
    sign = -ledger.sign
    ended = [s for s in list(ledger.trials.values()) if not s.open or (paused and s.state == "paused")]
    ended.sort(key=lambda s: (s.state != "completed", s.failed, sign * s.best if s.best is not None else 0.0, s.ended))
    return ended[:count]


def leading(ledger: Ledger, state: str, most: int) -> tuple[list[TrialRecord], int]:
    """The best open trials of a state, in order of their start, and how many others there are."""
    there = [record for record in list(ledger.open_trials.values()) if record.state == state]
    best = sorted(there, key=lambda r: -ledger.sign * r.best if r.best is not None else math.inf)[:most]
    chosen = {record.trial.id for record in best}
    return [record for record in there if record.trial.id in chosen], len(there) - len(best)


def trial_line(record: TrialRecord, space: Space) -> str:
    """`t0007 completed  best 71.20 after 6,000; 8,000 of 9,000 examples, 12s  learning_rate=3e-05`."""
    planned = f" of {record.planned:,}" if record.planned > record.examples else ""
    point = " ".join(f"{name}={show(v)}" for name, v in record.trial.point.items())
    seed = f" seed {record.trial.seed}" if space.search.repeats > 1 or record.trial.stage == "confirm" else ""
    seed += f" from {record.trial.origin}" if record.trial.origin else ""
    if record.failed:
        return f"{record.trial.id} {record.state}{seed}  {record.reason}  {point}"
    best = f"best {number(record.best)} after {record.best_at:,}; " if record.best is not None else ""
    examples = f"{record.examples:,}{planned} examples"
    return f"{record.trial.id} {record.state}{seed}  {best}{examples}, {duration(record.seconds)}  {point}"


def go_on(space: Space, ledger: Ledger, study: str, options: str, reason: str) -> str:
    """The command that continues a study that has ended for this reason. A study keeps its copy of its own sampler or
    pruner, so after an error in one only another study has a corrected file.

    Args: options: ` --storage ...` and the like, as commands take them.
    """
    for kind, own in space.classes.items():
        if own.code and own.code.text and reason.startswith(f"{kind} {own.name}"):
            best = f" --from {study}" if ledger.best is not None else ""
            return f"correct {own.name.rpartition(':')[0]}, then search run SPACE.yaml{best}{options}"
    return f"search resume {study}{options}{_larger(space, reason)}"


def _larger(space: Space, reason: str) -> str:
    """The option of `search resume` that doubles the spent budget of a study, "" where it ended otherwise."""
    spent = next((key for words, key in BUDGETS.items() if reason.endswith("is spent") and words in reason), None)
    return f" --set search.{spent}={2 * getattr(space.search, spent):.12g}" if spent else ""


def number(value: float | None) -> str:
    """A value in [-1, 1] as it is shown: times 100, as in papers, with two decimals."""
    return "" if value is None else f"{value * SHOWN_SCALE:.2f}"


def show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """`1h02m`, `3m10s`, `12s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
