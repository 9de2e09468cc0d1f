"""Training texts and scored pairs: where they lie, how they are read, what is computed from them once."""
