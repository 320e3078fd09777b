"""Latent priors p(z | x): standard normal, conditional normal, mixture, temporal, Gaussian process."""
