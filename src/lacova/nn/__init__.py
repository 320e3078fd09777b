"""Linear algebra, the posterior of z as tensors, encoders and decoders."""

from lacova.nn.networks import Conv, Dense, Networks

__all__ = ["Conv", "Dense", "Networks"]
