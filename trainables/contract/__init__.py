"""What passes between a search and its trials: specs, configurations, names. No torch."""
