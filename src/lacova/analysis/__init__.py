"""What is done with answers: comparing models, pooling, regression, sensitivity."""
