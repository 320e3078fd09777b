"""Analyses on top of fitted models: comparison, recovery of hidden entries, pooling, regression, sensitivity."""
