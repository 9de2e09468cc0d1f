"""Clusters: the job, the tunnel, the backup."""
