"""Evaluating an encoder: metrics, sentence pairs and retrieval sets, transfer tasks."""
