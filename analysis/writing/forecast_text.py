"""What a confirmation could show, in words, before it is paid for."""

from __future__ import annotations

from collections.abc import Callable

from analysis.statistics.selection import POWER
from analysis.statistics.study_verdict import ConfirmForecast
from analysis.tables.study import Study
from analysis.writing.verdict_text import noise_line, power_text


def forecast_lines(found: ConfirmForecast, study: Study) -> list[str]:
    """One statement a line; values times the metric's scale."""
    metric = study.metric

    def number(value: float, sign: str = "") -> str:
        return f"{value * metric.scale:{sign}.2f}"

    hours = found.trials * found.seconds / 3600
    cost = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes" if hours > 1 / 30 else "a minute or two"
    lines = [
        f"Confirming {study.name} by a fixed plan: {found.points} points on {found.seeds} fresh seeds, "
        f"{found.trials} trials to run, about {cost} of training at {found.seconds:.0f} s a trial; points that fall "
        "behind end earlier."
    ]
    if found.power is None:
        lines.append("It can claim no gain: the study has no completed baseline trial besides the points to confirm.")
    else:
        lines.append(_power(found, number))
        if found.look > 1:
            lines.append(f"It would be look {found.look} at these figures, and is judged by the level that is left.")
    lines.append(noise_line(found.noise, metric, number))
    if found.power and found.pairs is None:
        lines.append("The choice of dev pairs is not in these figures: the trials' similarities are not at hand.")
    return lines


def _power(found: ConfirmForecast, number: Callable[..., str]) -> str:
    """Without repeated seeds all that two models differ by counts as the dev pairs' doing: an upper bound."""
    assert found.power is not None
    seen = f"(seen: claimed in {POWER:.0%} of cases)".replace("%", " %")
    if found.pairs and not found.noise.repeats:
        return (
            f"With these pairs and {found.seeds} seeds a gain below {number(found.power.visible)} at most is likely to "
            f"stay unseen {seen}; how much of that the dev pairs make is known once seeds are repeated."
        )
    return f"{power_text(found.power, number)} {seen}."
