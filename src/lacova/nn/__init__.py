"""Linear algebra, the posterior of z as tensors, encoders and decoders."""
