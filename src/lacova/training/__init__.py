"""The training loop and what it needs: options, batches, steps, checkpoints, devices."""
