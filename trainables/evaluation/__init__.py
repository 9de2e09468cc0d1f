"""What an encoder is worth: metrics, sentence pairs, transfer tasks."""
