"""A fake trial that writes down which GPUs it was given and when; Ray counts GPUs, none need be there."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import ray
from fake_trial import FakeTrial


class GpuTrial(FakeTrial):
    def step(self) -> dict[str, Any]:
        began = time.time()
        message = super().step()
        context = ray.get_runtime_context()
        seen = {
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "pid": os.getpid(), "from": began, "to": time.time(),
            "reserved": context.get_assigned_resources().get("GPU"), "spec": self.spec.gpus,
        }  # fmt: skip
        with (self.folder / "steps.jsonl").open("a") as f:
            f.write(json.dumps(seen) + "\n")
        return message
