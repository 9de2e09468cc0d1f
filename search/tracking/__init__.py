"""The journal replayed into MLflow."""
