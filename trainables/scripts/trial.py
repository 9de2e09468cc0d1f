"""The body of a trial that a script trains (`trainables.training.trial.Body`)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainables.contract.registry import CHECKPOINTS, DATA, DEVICE, ENCODER, RESUME, SEED, script_function
from trainables.contract.trial import Outcome, Report, TrialSpec, phase
from trainables.scripts.files import ScriptFiles
from trainables.scripts.report import ScriptReport, TrialOver
from trainables.training.distributed import World
from trainables.training.trial import ProcessCache, seed_generators


def train_by_script(
    spec: TrialSpec, report: Report, world: World, kept: ProcessCache, pausing: Callable[[], bool]
) -> Outcome:
    """Call the script's function with this trial's `config` and a `ScriptReport`, until it returns.

    Raises: what the script raises, and PluginError for one that cannot be called or reports nothing.
    """
    del kept  # modules stay imported; what else a script keeps between trials is its own affair
    assert spec.script is not None, "checked with the space"
    phase(f"importing {Path(spec.script.file).name}")
    function = script_function(spec.script)
    seed_generators(spec.seed)
    files = ScriptFiles(spec.folder)
    try:
        telling = ScriptReport(spec, files, report, pausing)
        phase(f"running {Path(spec.script.file).name}")
        try:
            function(config_of(spec, files, telling, world), telling)
        except TrialOver:
            pass
        except SystemExit as end:
            raise RuntimeError(f"the script called sys.exit({end.code!r})") from end
        # The state stays until the study has written down how the trial ended: an end that is lost on its way to the
        # driver, with this process, then costs no training.
        return telling.outcome()
    finally:
        files.close()
        gc.collect()  # a trainer and its model hold each other


def config_of(spec: TrialSpec, files: ScriptFiles, telling: ScriptReport, world: World) -> dict[str, Any]:
    """What a script's function gets: its hyperparameters, and beside them

    seed: of the trial (random, numpy and torch are seeded with it already); encoder: the space's, or None; data: what
    the space's `data` says; device: "cpu" or "cuda"; checkpoints: a local folder for states that survive a kill;
    resume: the state to go on from, as it was given to `report.saved`, or None.
    """
    data = {name: value for name, value in spec.data.items() if value}
    return {
        **spec.params, SEED: spec.seed, ENCODER: spec.encoder or None, DATA: data, DEVICE: world.device.type,
        CHECKPOINTS: str(files.checkpoints), RESUME: telling.resume,
    }  # fmt: skip
