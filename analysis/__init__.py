"""What a finished (or running) study says: ranking with uncertainty, importance, plots, report and export."""
