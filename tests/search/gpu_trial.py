"""A fake trial that writes down which GPUs it was given and when; Ray counts GPUs, none need be there."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from fake_trial import FakeTrial


class GpuTrial(FakeTrial):
    def step(self) -> dict[str, Any]:
        began = time.time()
        message = super().step()
        seen = {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "pid": os.getpid(), "from": began, "to": time.time()}
        with (self.folder / "steps.jsonl").open("a") as f:
            f.write(json.dumps(seen) + "\n")
        return message
