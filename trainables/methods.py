"""The table of training methods. A new method is a module, a line here, a Config, a space, a test."""

from __future__ import annotations

from trainables import edacse, gclsr, sda, selfccl, simcse
from trainables.method import Method

METHODS: dict[str, Method] = {
    m.name: m for m in (simcse.UNSUPERVISED, simcse.SUPERVISED, edacse.METHOD, sda.METHOD, selfccl.METHOD, gclsr.METHOD)
}
