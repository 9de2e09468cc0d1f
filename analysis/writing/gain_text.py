"""The gain on the test sets in words."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.statistics.pairs import PairedGain
from analysis.writing.output import text_table


def gain_text(gains: Sequence[PairedGain], baseline: str) -> str:
    """A table of the gains over the baseline and what their intervals are over; correlations x 100."""
    if not gains:
        return f"Gain over {baseline} on the test sets: unknown, it takes weights of both configurations."

    def number(value: float, sign: str = "+") -> str:
        return f"{100 * value:{sign}.2f}"

    rows = [
        {
            "test set": gain.name,
            "best": number(gain.first, ""),
            "baseline": number(gain.second, ""),
            "gain": number(gain.gain),
            "95 % interval": f"{number(gain.low)} to {number(gain.high)}",
            "over pairs alone": f"{number(gain.pairs_low)} to {number(gain.pairs_high)}",
        }
        for gain in gains
    ]
    seeds = gains[0].seeds
    over = (
        f"paired over sentence pairs and the {seeds} seeds that both have"
        if seeds > 1
        else "paired over sentence pairs; of one common seed, so what seeds add is not in it"
        if seeds
        else "paired over sentence pairs; no seed in common, so what seeds add counts for each side"
    )
    return f"{text_table(rows)}\n\nGain over {baseline}, {over}."
