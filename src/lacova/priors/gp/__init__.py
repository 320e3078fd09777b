"""The Gaussian-process prior: additive kernels from a formula, inducing points, bounds on the KL, prediction."""
