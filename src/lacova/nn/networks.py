"""Encoders and decoders: dense and convolutional, the paper's architectures by name, and the protocol of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from lacova.data.measurement_space import MeasurementSpace
from lacova.data.registry import register

# Log-variances of q(z) stay within these bounds, so that a variance neither vanishes nor overflows in float32.
LOG_VAR_RANGE = (-14.0, 8.0)


class Networks(ABC):
    """An architecture: what builds the encoder and the decoder of a model.

    To bring networks of your own, derive a frozen dataclass from this class, register it, and pass an instance as
    `networks=`. Its fields are saved with the model: text, numbers, True and False, None, and tuples of these.
    `lacova.testing.check_networks` runs the contract.

    Attributes:
        parallel: whether layers are so large that several threads repay their cost, as convolutions of images are.
            While a model works with other networks, torch has one thread.
    """

    part_kind: ClassVar[str] = "networks"
    parallel: ClassVar[bool] = False

    @abstractmethod
    def build_encoder(self, measurements: MeasurementSpace, features: int, latent_dim: int) -> nn.Module:
        """Build q(z | y_o, x_o): a module that maps (y, y_mask, features) to mean and variance (N×L each).

        Args:
            measurements: layout of Y. Its `features(y, y_mask)` (N×`width`) has gaps as zeros and the mask beside them.
            features: width of the covariate features.
            latent_dim: L.
        """

    @abstractmethod
    def build_decoder(self, inputs: int, outputs: int) -> nn.Module:
        """Build a module that maps z, with x beside it in a CVAE (K×inputs), to decoder outputs (K×outputs)."""


def has_linear_path(networks: Networks) -> bool:
    """Return whether decoders have a linear path, which can start near the end: those of tables."""
    return bool(getattr(networks, "linear", False))


@register("Dense")
@dataclass(frozen=True)
class Dense(Networks):
    """Fully connected encoder and decoder.

    Args:
        encoder: hidden widths, () for a linear map.
        decoder: the same.
        linear: add a linear path beside the decoder's hidden layers, whose output then starts at zero. Training
            learns the linear part first.
    """

    encoder: tuple[int, ...] = (128, 64)
    decoder: tuple[int, ...] = (64, 128)
    linear: bool = False

    def build_encoder(self, measurements: MeasurementSpace, features: int, latent_dim: int) -> Encoder:
        return Encoder(self, measurements, features, latent_dim)

    def build_trunk(self, measurements: MeasurementSpace) -> tuple[nn.Module, int]:
        """Return what a row's measurements pass before the dense layers, and its width."""
        return nn.Identity(), measurements.width

    def build_decoder(self, inputs: int, outputs: int) -> Decoder:
        network = mlp([inputs, *self.decoder, outputs])
        if not (self.linear and self.decoder):
            return Decoder(network)
        decoder = Decoder(network, nn.Linear(inputs, outputs))
        for parameter in network[-1].parameters():
            nn.init.zeros_(parameter)
        return decoder


@register("Conv")
@dataclass(frozen=True)
class Conv(Networks):
    """Convolutional encoder and decoder for images.

    Args:
        image: height and width; the measurements are the pixels, row by row. Both divisible by 4 and at least 12.
        encoder_filters: filters of the two 3×3 convolutions, each of stride 2 and followed by 2×2 max pooling.
        decoder_filters: channels that enter the two 4×4 transposed convolutions of stride 2.
        encoder: widths of the dense layers after the convolutions.
        decoder: widths of the dense layers before the transposed ones.
    """

    parallel: ClassVar[bool] = True
    image: tuple[int, int] = (36, 36)
    encoder_filters: tuple[int, int] = (144, 144)
    decoder_filters: tuple[int, int] = (256, 256)
    encoder: tuple[int, ...] = (300, 30)
    decoder: tuple[int, ...] = (30, 300)

    def build_encoder(self, measurements: MeasurementSpace, features: int, latent_dim: int) -> Encoder:
        return Encoder(self, measurements, features, latent_dim)

    def build_trunk(self, measurements: MeasurementSpace) -> tuple[nn.Module, int]:
        """Return the convolutions, and the width of what they give."""
        self._check_image(len(measurements), measurements.width // 2)
        first, second = self.encoder_filters
        trunk = nn.Sequential(
            nn.Unflatten(1, (2, *self.image)),
            nn.Conv2d(2, first, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2),
            nn.Conv2d(first, second, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2),
            nn.Flatten(),
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fmt: skip
        return trunk, trunk(torch.zeros(1, measurements.width)).shape[1]

    def build_decoder(self, inputs: int, outputs: int) -> Decoder:
        self._check_image(outputs, outputs)
        height, width = (side // 4 for side in self.image)
        first, second = self.decoder_filters
        network = nn.Sequential(
            *mlp([inputs, *self.decoder, first * height * width]), nn.ReLU(),
            nn.Unflatten(1, (first, height, width)),
            nn.ConvTranspose2d(first, second, 4, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(second, 1, 4, stride=2, padding=1), nn.Flatten(),
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fmt: skip
        return Decoder(network)

    def _check_image(self, measurements: int, channel: int) -> None:
        height, width = self.image
        if channel != measurements:
            raise ValueError(
                "Conv(...) is for numbers, counts and bernoulli columns; categories need networks=Dense(...)."
            )
        if height * width != measurements:
            raise ValueError(
                f"Conv(image={self.image}) expects {height * width} measurements (pixels row by row), "
                f"got {measurements}."
            )
        if min(height, width) < 12:
            raise ValueError(f"Conv(image={self.image}): each side must have at least 12 pixels; pad the images.")
        if height % 4 or width % 4:
            raise ValueError(f"Conv(image={self.image}): height and width must be divisible by 4; pad the images.")


PRESETS: dict[str, Networks] = {
    "clinical": Dense((128, 64), (64, 128), linear=True),  # the paper's table for the clinical trial, and a linear path
    "rotated-digits": Conv(),  # the paper's table for 36×36 digits
    "dense-digits": Dense((300, 30), (30, 300)),  # the same widths without the convolutions
}


def resolve(networks: str | Networks) -> Networks:
    """Return the networks behind a preset's name, or those given."""
    if isinstance(networks, str):
        if networks not in PRESETS:
            raise ValueError(
                f"networks is {networks!r}; the presets are {', '.join(PRESETS)}, or pass Dense(...) or Conv(...)."
            )
        return PRESETS[networks]
    if not isinstance(networks, Networks) or not is_dataclass(networks):
        raise ValueError(
            f"networks is {networks!r}; expected Dense(...), Conv(...), a dataclass derived from lacova.nn.Networks, "
            f"or one of {', '.join(PRESETS)}."
        )
    return networks


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Build linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Encoder(nn.Module):
    """q(z | y_o, x_o): mean and variance of each latent dimension, from values and masks.

    Args:
        networks: `Dense(...)` or `Conv(...)`.
        measurements: their layout, or D where all are Gaussian.
        features: width of the covariate features.
        latent_dim: L.
        rows: how many rows enter the head at once.
        outputs: numbers per latent dimension.
    """

    def __init__(
        self, networks: Dense | Conv, measurements: int | MeasurementSpace, features: int, latent_dim: int,
        rows: int = 1, outputs: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        self.measurements = MeasurementSpace.of(measurements)
        self.trunk, width = networks.build_trunk(self.measurements)
        self.head = mlp([rows * width + features, *networks.encoder, outputs * latent_dim])

    def forward(self, y: Tensor, y_mask: Tensor, features: Tensor, row: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and variance of q(z) of each row, or of the rows `row` (K,) with features of their own (K×…)."""
        image = self.trunk(self.measurements.features(y, y_mask))
        image = image if row is None else image[row]
        mean, log_var = self.head(torch.cat([image, features], dim=1)).chunk(2, dim=1)
        return mean, log_var.clamp(*LOG_VAR_RANGE).exp()


class Decoder(nn.Module):
    """Decoder outputs given z, or z and x: a network, and a linear path beside it if there is one."""

    def __init__(self, network: nn.Sequential, linear: nn.Linear | None = None) -> None:
        super().__init__()
        self.network, self.linear = network, linear

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.network(inputs)
        return out if self.linear is None else out + self.linear(inputs)
