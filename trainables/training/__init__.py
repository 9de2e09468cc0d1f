"""One trial: its inputs, its loop, its checkpoints."""
