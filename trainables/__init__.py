"""What one trial does: methods, losses, encoders, data and the training loop (pure core), and its Ray Train wrapper."""
