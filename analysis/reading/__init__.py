"""Reading what `search` wrote to MLflow."""
