"""What needs the trained weights: export, sealed tests."""
