"""Space files (YAML only). `search run spaces/X.yaml` takes a path; these travel with the package."""
