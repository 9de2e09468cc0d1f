"""Studies on a cluster of `ray up`, and the MLflow server of `search ui`."""
