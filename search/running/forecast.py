"""What a search will cost, measured: a few real steps with all numbers low, and with all of them high. No Ray."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count, pairwise, takewhile
from pathlib import Path
from typing import Any

from search.space import Space
from search.store.layout import UserError
from search.study.pruners import first_rung, warmup_examples
from search.study.rungs import rungs
from search.wording import between, wanted_points
from trainables.contract.limits import cores
from trainables.contract.trial import WEIGHTS, Decision, Evaluation, Outcome, TrialSpec

FEW, MORE = 2, 6  # steps of the two measurements; their difference is free of start-up and evaluation


@dataclass(frozen=True)
class Cost:
    """One configuration, measured.

    seconds: of a full-length trial, evaluations included; examples: it trains on; weights: bytes of a checkpoint.
    stop: "completed", or how the measurement failed; reason: why.
    """

    point: Mapping[str, Any]
    seconds: float = math.nan
    examples: int = 0
    weights: int = 0
    stop: str = "completed"
    reason: str = ""


def forecast_lines(space: Space, price: float | None) -> list[str]:
    """For people: trials, hours, disk, money, and what will not fit.

    Args: price: of a device-hour, in any currency; None = no money line.
    Raises: UserError for a script.
    """
    if space.script is not None:
        raise UserError(f"--forecast: {space.what}: the length of a script's trial is not known; run one trial first")
    small, large = (measure(space, point) for point in extremes(space))
    lines = [
        f"forecast: with the {name} values {describe(cost)}" for name, cost in (("lowest", small), ("highest", large))
    ]
    if large.stop == "failed:oom":
        lines.append(f"WARNING: the configuration of the highest values does not fit into memory: {large.reason}")
    whole = [cost for cost in (small, large) if cost.stop == "completed"]
    if not whole:
        return lines
    most = full_length_trials(space, whole[0].examples)
    limits = [n for n in (trials(space), most) if n is not None]
    unit = "device-hours" if device_world(space).device.type == "cuda" else "hours on the CPU"
    if not limits:
        return [*lines, "forecast: no number of trials is set, so the search ends by its time, patience or budget"]
    seconds = sum(cost.seconds for cost in whole) / len(whole)
    hours = min(limits) * seconds / 3600 * space.resources.workers * (space.resources.numbers().gpus or 1)
    if min(limits) == most:
        line = f"forecast: training of {most:g} full-length trials of about {seconds:.0f} s"
        lines.append(f"{line}, {hours:.2f} {unit}")
    else:
        share = pruned_share(space, max(cost.examples for cost in whole))
        line = f"forecast: {limits[0]} trials of about {seconds:.0f} s, {hours:.2f} {unit} without pruning"
        expected = f"{space.pruner.kind} (expected share of the examples {share:.0%})"
        lines.append(line + (f", about {hours * share:.2f} with {expected}" if share < 1 else ""))
        hours *= share
    weights = max(cost.weights for cost in whole)
    disk = weights * space.search.keep_best
    lines.append(
        f"forecast: disk {disk / 2**20:.0f} MiB for the {space.search.keep_best} best checkpoints, "
        f"and up to {3 * weights / 2**20:.0f} MiB for every trial that runs"
    )
    if space.pruner.kind == "asha":
        lines.append(f"forecast: and up to {space.pruner.states_gb:g} GB for the states of paused trials")
    if price is not None:
        lines.append(f"forecast: {hours * price:.2f} at {price:g} per device-hour")
    return lines


def estimate_line(space: Space) -> str:
    """For people: the time of the search here, from seconds of measurement at the lowest and the highest values.

    An encoder that is not on this machine is not fetched for it. Never raises: the line holds the reason.
    """
    from trainables.encoders.locate import available_folder

    if not space.encoder.startswith("builtin:") and available_folder(space.encoder) is None:
        return "cost: not measured, since the encoder is not on this machine yet; `search check --forecast` loads it"
    from trainables.training.pace import paces
    from trainables.training.trial import failed

    world, points = device_world(space), extremes(space)
    try:
        found = paces([space.trial_spec(space.values(point), "") for point in points], world)
    except Exception as fault:
        return f"cost: not measured: {failed(fault).reason}"
    limits = [n for n in (trials(space), full_length_trials(space, found[0].examples)) if n is not None]
    if not limits:
        return "cost: the search ends by its time or patience"
    at_once = 1 if world.device.type == "cuda" else max(1, cores() // max(1, int(space.resources.numbers().cpus)))
    low, high = sorted(pace.seconds * min(limits) / at_once for pace in found)
    batches = sorted({int(space.values(point)["batch_size"]) for point in points})
    return (
        f"cost: {between(low, high)} for the search under the present load ({min(limits):g} full-length trials of "
        f"{found[0].examples:,} examples, {at_once} at once), measured on a few steps with batches of "
        f"{' and '.join(map(str, batches))}. A confirmation takes at most as long"
    )


def full_length_trials(space: Space, examples: int) -> float | None:
    """The training budget in full-length trials of so many examples; None where there is none."""
    if space.search.budget is not None:
        return space.search.budget
    return space.search.examples / examples if space.search.examples is not None and examples else None


def trials(space: Space) -> int | None:
    """How many trials a study will start: points times repeats; None when nothing but time bounds them."""
    points = wanted_points(space)
    return None if points is None else points * space.search.repeats


def extremes(space: Space) -> tuple[dict[str, Any], dict[str, Any]]:
    """The points with the smallest and the largest memory: every number at its low or high end."""
    ends = []
    for high in (False, True):
        point: dict[str, Any] = dict(space.rows[-1 if high else 0]) if space.rows else {}
        for name, param in space.params.items():
            if param.listed or not space.active(name, point):
                continue
            values = param.values if param.values is not None else [param.low, param.high]
            numbers = all(isinstance(v, (int, float)) for v in values)
            point[name] = (max if high else min)(values) if numbers else values[-1 if high else 0]
        ends.append(point)
    return ends[0], ends[1]


def measure(space: Space, point: Mapping[str, Any]) -> Cost:
    """Train `FEW` and `MORE` steps at this point and scale up to the trial's length."""
    from trainables.training.machine import use_large_pages

    use_large_pages()  # as a trial's process does, before torch allocates
    from trainables.training.trial import ProcessCache, run_trial

    kept, values = ProcessCache(), space.values(point)
    batch = int(values["batch_size"])
    evaluations: list[Evaluation] = []
    times: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:

        def spec(steps: int) -> TrialSpec:
            cut = {**values, "eval_steps": steps}  # stopped there; its evaluation carries the planned length
            return space.trial_spec(cut, f"{folder}/{steps}")

        def report(evaluation: Evaluation) -> Decision:
            evaluations.append(evaluation)
            return "prune"

        outcome = Outcome("completed", None, 0, 0, 0.0)
        for steps in (1, FEW, MORE):  # the first warms up
            outcome = run_trial(spec(steps), report, device_world(space), kept)
            if outcome.stop not in ("completed", "pruned"):
                return Cost(point, stop=outcome.stop, reason=outcome.reason)
            times[steps] = outcome.seconds
        weights = (Path(folder) / str(MORE) / WEIGHTS).stat().st_size
    examples = evaluations[-1].planned
    per_step = max(0.0, times[MORE] - times[FEW]) / (MORE - FEW)
    each_evaluation = max(0.0, times[FEW] - FEW * per_step)
    rung = values["eval_steps"] * batch if values["eval_steps"] else values["eval_examples"]
    seconds = examples / batch * per_step + -(-examples // rung) * each_evaluation  # the last one is at the end
    return Cost(point, seconds, examples, weights)


def device_world(space: Space) -> Any:
    """One process on the device that trials of this space get, as far as this machine has it."""
    import torch

    from trainables.training.distributed import World

    torch.set_num_threads(max(1, int(space.resources.numbers().cpus)))
    return World(device=torch.device("cuda" if space.resources.gpus != 0 and torch.cuda.is_available() else "cpu"))


def pruned_share(space: Space, examples: int) -> float:
    """Expected share of the full search's examples under the pruner; 1 where no rule of thumb exists.

    Successive halving keeps 1/eta at every rung r, eta r, eta^2 r ... (Jamieson and Talwalkar 2016), asha at its own
    (`rungs`); hyperband averages over brackets that start at higher and higher rungs (Li et al. 2018). The median rule
    stops about half of the trials at their first comparisons.
    """
    kind, eta = space.pruner.kind, space.pruner.reduction
    warmup = warmup_examples(space.pruner, space.base, examples)
    every = int(space.base["eval_steps"] or 0) * int(space.base["batch_size"]) or int(space.base["eval_examples"])
    first = first_rung(space.pruner, warmup, examples, every)
    if first >= examples:
        return 1.0
    if kind == "median":
        return 0.5 + 0.5 * first / examples
    if kind == "percentile":
        kept = space.pruner.percentile / 100
        return kept + (1 - kept) * first / examples
    if kind not in ("successive_halving", "asha", "hyperband"):
        return 1.0

    def halving(stops: Iterable[int]) -> float:
        ends = [*takewhile(lambda stop: stop < examples, stops), examples]
        trained = (end - begun for begun, end in pairwise((0, *ends)))
        return sum(length / float(eta**level) for level, length in enumerate(trained)) / examples

    def powers(start: int) -> Iterable[int]:
        return (start * eta**level for level in count())

    if kind == "asha":
        return halving(rungs(first, examples, eta))
    if kind == "successive_halving":
        return halving(powers(first))
    brackets = int(math.log(examples / first, eta)) + 1
    return sum(halving(powers(first * eta**level)) for level in range(brackets)) / brackets


def describe(cost: Cost) -> str:
    """`(learning_rate=1e-06): 12 s a trial on this machine, 8,000 examples`, or how the measurement failed."""
    point = " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in cost.point.items())
    if cost.stop != "completed":
        return f"({point}): {cost.stop}: {cost.reason}"
    return f"({point}): {cost.seconds:.0f} s a trial on this machine, {cost.examples:,} examples"
