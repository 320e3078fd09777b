"""The public models, how they are built, and how they are saved."""

from lacova.models.base import Model

__all__ = ["Model"]
