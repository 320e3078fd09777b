"""p(z | x): standard normal, conditional, mixture, temporal, Gaussian process."""
