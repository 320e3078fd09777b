"""Data sets made on the spot, for demonstrations, tests and studies."""

from lacova.datasets import sdtm
from lacova.datasets.digits import mask_at_random, rotated_digits

__all__ = ["mask_at_random", "rotated_digits", "sdtm"]
