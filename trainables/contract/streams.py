"""The streams of a trial's seed: what is drawn for one never moves another."""

SAMPLE, SHUFFLE, AUGMENT = 1, 2, 3
