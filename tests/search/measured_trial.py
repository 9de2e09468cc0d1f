"""A fake trial whose first evaluation carries the measurement given in the order `facts`."""

from __future__ import annotations

import json
from typing import Any

from fake_trial import FakeTrial
from orders import ordered


class MeasuredTrial(FakeTrial):
    def step(self) -> dict[str, Any]:
        message = super().step()
        asked = {"gpus": self.spec.gpus, "cpus": self.spec.cpus, "measure": self.spec.measure}
        (self.folder / "asked.json").write_text(json.dumps(asked))
        if self.spec.measure and "metrics" in message:
            message["metrics"] |= ordered(self.spec)["facts"]
        return message
