"""What is said of a study and its trials, as plain text: on the console, in MLflow's notes, by `search status`."""

from __future__ import annotations

from typing import Any

from search.space import Space
from search.store.ledger import Ledger, TrialRecord


def headline(space: Space, ledger: Ledger, now: int) -> str:
    """`quickstart: 12 of 16 points, best 0.712 (t0007), 2 failed (oom), 3m10s, about 1m left`."""
    done, total = len(ledger.tried), wanted_points(space)
    parts = [f"{done}{f' of {total}' if total else ''} points"]
    if ledger.best is not None:
        parts.append(f"best {space.metric.name} {number(ledger.best.best)} ({ledger.best.trial.id})")
    for stop in ("pruned", "paused"):
        count = (
            ledger.stops[stop]
            if stop == "pruned"
            else sum(s.state == "paused" for s in list(ledger.open_trials.values()))
        )
        if count:
            parts.append(f"{count} {stop}")
    if (share := training_share(space, ledger)) is not None:
        parts.append(f"{min(1.0, share):.0%} of the training budget spent")
    if ledger.failed():
        parts.append(f"{ledger.failed()} failed ({failures(ledger)})")
    elapsed = ledger.elapsed(now if ledger.closed is None else None)
    parts.append(duration(elapsed))
    left = seconds_left(space, ledger, elapsed)
    if left is not None and ledger.closed is None:
        parts.append(f"about {duration(left)} left")
    return f"{space.name}: " + ", ".join(parts)


def open_work(space: Space, ledger: Ledger) -> str:
    """What `resume` would take up: `4 of 12 points of the search, the confirming`; "" when there is nothing."""
    parts = []
    waiting = any(record.trial.stage == "search" for record in ledger.open_trials.values())
    ended = ledger.stages.get("search")
    if ended not in ("finished", "out_of_budget") or (waiting and ended == "finished"):
        total = wanted_points(space)
        parts.append(f"{total - len(ledger.points)} of {total} points of the search" if total else "the search")
    if ledger.confirming and ledger.stages["confirm"] != "finished":
        parts.append("the confirming")
    return ", ".join(parts)


def seconds_left(space: Space, ledger: Ledger, elapsed: float) -> float | None:
    """Estimate from the rate of trials so far, if every further point has all its seeds, within the time budget; None
    before the first trial has ended."""
    total, ended, by_trials = wanted_points(space), ledger.ended(), None
    if total and ended:
        of_settled = sum(point["seeds"] for point in ledger.points.values())
        to_come = (total - len(ledger.points)) * space.search.repeats - (ended - of_settled)
        by_trials = elapsed / ended * max(0, to_come)
        if space.pruner.kind == "asha":  # a paused point has cost what it will, most likely
            by_trials = elapsed / len(ledger.tried) * max(0, total - len(ledger.tried))
    by_training = None
    share = training_share(space, ledger)
    if share:
        by_training = elapsed * max(0.0, 1 / share - 1)
    by_time = max(0.0, space.search.time - elapsed) if space.search.time is not None else None
    known = [s for s in (by_trials, by_training, by_time) if s is not None]
    return min(known) if known else None


def training_share(space: Space, ledger: Ledger) -> float | None:
    """How much of the training budget is spent, in [0, 1] (a little above at the end); None where there is none."""
    if space.search.budget is not None:
        return ledger.whole_trials(ledger.examples) / space.search.budget
    return ledger.examples / space.search.examples if space.search.examples is not None else None


def wanted_points(space: Space) -> int | None:
    """How many points the study is to have; None when only time, training or patience ends it."""
    known = [n for n in (space.search.trials, space.cardinality()) if n is not None]
    return min(known) if known else None


def failures(ledger: Ledger) -> str:
    """`2 oom, 1 nan`."""
    kinds = {stop.removeprefix("failed:"): n for stop, n in ledger.stops.items() if stop.startswith("failed:")}
    return ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items(), key=lambda item: -item[1]))


def best_trials(ledger: Ledger, count: int) -> list[TrialRecord]:
    """The best ended trials, best first, completed before pruned ones; failed ones last, in order of their end."""
    sign = -1.0 if ledger.maximise else 1.0
    ended = [s for s in list(ledger.trials.values()) if not s.open]
    ended.sort(key=lambda s: (s.state != "completed", s.failed, sign * s.best if s.best is not None else 0.0, s.ended))
    return ended[:count]


def trial_line(record: TrialRecord, space: Space) -> str:
    """`t0007 completed  best 0.712 at 6,000 of 8,000 examples, 12s  learning_rate=3e-05`."""
    planned = f" of {record.planned:,}" if record.planned > record.examples else ""
    point = " ".join(f"{name}={show(v)}" for name, v in record.trial.point.items())
    seed = f" seed {record.trial.seed}" if space.search.repeats > 1 or record.trial.stage == "confirm" else ""
    if record.failed:
        return f"{record.trial.id} {record.state}{seed}  {record.reason}  {point}"
    best = f"best {number(record.best)} at {record.best_at:,}, {record.examples:,}{planned} examples"
    return f"{record.trial.id} {record.state}{seed}  {best}, {duration(record.seconds)}  {point}"


def number(value: float | None) -> str:
    """A correlation in [-1, 1] with four decimals."""
    return "" if value is None else f"{value:.4f}"


def show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """`1h02m`, `3m10s`, `12s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
