"""A class trainable with the protocol of `on_ray.trainable.TrialJob` and no training: a learning curve by formula.

The trial's folder holds `last/state.json` to go on from and `best/similarities.npz` at the end. What it is to do
besides comes with the data of its space (`orders.orders`).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from orders import ordered
from ray import tune

from trainables.contract.trial import TrialSpec
from trainables.on_ray.messages import DeviceFault, pause_requested, study_pausing

EVALUATIONS = 6
RUNG = 100


def curve(spec: TrialSpec, evaluation: int) -> float:
    """Value of evaluation 1..EVALUATIONS: best near a learning rate of 3e-5, noise from point and seed."""
    quality = 1.0 / (1.0 + (math.log(spec.params["learning_rate"] / 3e-5) / 2) ** 2)
    noise = np.random.default_rng([spec.seed, int(spec.params["learning_rate"] * 1e9)]).normal(0, 0.003, EVALUATIONS)
    return float(0.3 + 0.5 * quality * (1 - math.exp(-evaluation / 2)) + noise[evaluation - 1])


class FakeTrial(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._end()
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        self._end()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        pass

    def load_checkpoint(self, checkpoint: Any) -> None:
        pass

    def step(self) -> dict[str, Any]:
        spec = self.spec
        if self.k:
            self._save()  # only now: the driver has seen the evaluation
            if self.pauses and pause_requested(spec.folder):
                self.running = False
                return self._outcome("paused")
        time.sleep(float(ordered(spec).get("sleep", 0)))
        if self.k == EVALUATIONS:
            while (hold := ordered(spec).get("hold")) and self.folder.name >= "t0020" and not Path(hold).exists():
                time.sleep(0.1)
            self._finish()
            return self._outcome("completed")
        self.k += 1
        if message := self._fault():
            return message
        value = curve(spec, self.k)
        if value > self.best:
            self.best, self.best_at = value, self.k * RUNG
        return {
            "rung": self.k * RUNG,
            "examples": self.k * RUNG,
            "value": value,
            "metrics": {spec.metric: value, "loss": 1.0 / self.k},
            "best": self.best,
            "best_at": self.best_at,
            "seconds": 0.1 * self.k,
            "resumed_from": self.resumed_from,
            "planned": EVALUATIONS * RUNG,
            "done": False,
        }

    def _fault(self) -> dict[str, Any] | None:
        faults = ordered(self.spec)
        if self.spec.params["learning_rate"] < float(faults.get("above", math.inf)) or self.k != 2:
            return None
        match faults.get("fault"):
            case "nan":
                self._finish()
                return self._outcome("failed:nan", "the loss is nan after 200 training examples")
            case "oom" if self.spec.gpus < faults.get("enough", math.inf):
                self._finish()
                return self._outcome("failed:oom", "CUDA out of memory")
            case "raise":
                raise RuntimeError("a bug in the trial")
            case "kill":
                os._exit(1)
            case "device":
                node = ray.get_runtime_context().get_node_id()
                if Path(faults["marker"]).exists() and (Path(faults["marker"]).read_text() or node) == node:
                    raise DeviceFault("CUDA error: an illegal memory access was encountered", node, "")
            case "kill_while":
                if Path(faults["marker"]).exists():
                    os._exit(1)
            case "kill_once":
                marker = self.folder / "killed"
                if not marker.exists():
                    marker.touch()
                    os._exit(1)
        return None

    def _outcome(self, stop: str, reason: str = "") -> dict[str, Any]:
        best = self.best if math.isfinite(self.best) else None
        return {
            "stop": stop,
            "best": best,
            "best_at": self.best_at,
            "examples": self.k * RUNG,
            "seconds": 0.1 * self.k,
            "reason": reason,
            "traceback": "",
            "done": True,
        }

    def _begin(self, config: dict[str, Any]) -> None:
        spec = TrialSpec.from_dict(config["spec"])
        self.spec, self.folder, self.pauses = spec, Path(spec.folder), config["pauses"]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.k, self.best, self.best_at, self.resumed_from, self.running = 0, -math.inf, 0, 0, True
        last = self.folder / "last" / "state.json"
        if last.exists():
            self.k, self.best, self.best_at = json.loads(last.read_text())
            self.resumed_from = self.k * RUNG

    def _save(self) -> None:
        last = self.folder / "last"
        last.mkdir(exist_ok=True)
        draft = last / ".state"
        draft.write_text(json.dumps([self.k, self.best, self.best_at]))
        os.replace(draft, last / "state.json")

    def _end(self) -> None:
        """Stopped by Tune: pruned, or paused when the study's marker is there."""
        if not self.running:
            return
        if study_pausing(self.spec, unknown=True):
            self._save()
        else:
            self._finish()

    def _finish(self) -> None:
        self.running = False
        best = self.folder / "best"
        best.mkdir(exist_ok=True)
        (best / "weights.safetensors").write_bytes(b"0" * 1000)
        np.savez(best / "similarities.npz", stsb=np.zeros(3, np.float32))
        shutil.rmtree(self.folder / "last", ignore_errors=True)
