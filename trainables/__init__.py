"""What one trial does: methods, losses, encoders, data and the training loop (pure core), and its Ray Train wrapper."""

import os

# torch asks once, at its first allocation. With 2 MB pages large tensors, made anew in every step, are mapped in a
# fraction of the time (docs/performance.md).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
