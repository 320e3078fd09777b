"""Encoders and decoders: dense and convolutional, with the paper's two architectures by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from lacova.data.measurement_space import MeasurementSpace

# Log-variances of q(z) stay within these bounds, so that a variance neither vanishes nor overflows in float32.
LOG_VAR_RANGE = (-14.0, 8.0)


@dataclass(frozen=True)
class Dense:
    """Fully connected encoder and decoder.

    Args:
        encoder: hidden widths, () for a linear map.
        decoder: the same.
        linear: give the decoder a linear path beside its hidden layers, which then start at zero: what is linear is
            learnt first.
    """

    encoder: tuple[int, ...] = (128, 64)
    decoder: tuple[int, ...] = (64, 128)
    linear: bool = False


@dataclass(frozen=True)
class Conv:
    """Convolutional encoder and decoder for images.

    Args:
        image: height and width; the measurements are the pixels, row by row. Both divisible by 4 and at least 12.
        encoder_filters: filters of the two 3×3 convolutions, each of stride 2 and followed by 2×2 max pooling.
        decoder_filters: channels that enter the two 4×4 transposed convolutions of stride 2.
        encoder: widths of the dense layers after the convolutions.
        decoder: widths of the dense layers before the transposed ones.
    """

    image: tuple[int, int] = (36, 36)
    encoder_filters: tuple[int, int] = (144, 144)
    decoder_filters: tuple[int, int] = (256, 256)
    encoder: tuple[int, ...] = (300, 30)
    decoder: tuple[int, ...] = (30, 300)


PRESETS: dict[str, Dense | Conv] = {
    "clinical": Dense((128, 64), (64, 128), linear=True),  # the paper's table for the clinical trial, and a linear path
    "rotated-digits": Conv(),  # the paper's table for 36×36 digits
    "dense-digits": Dense((300, 30), (30, 300)),  # the same widths without the convolutions
}


def resolve(networks: str | Dense | Conv) -> Dense | Conv:
    """The architecture behind a preset's name, or the one given."""
    if isinstance(networks, str):
        if networks not in PRESETS:
            raise ValueError(
                f"networks is {networks!r}; the presets are {', '.join(PRESETS)}, or pass Dense(...) or Conv(...)."
            )
        return PRESETS[networks]
    if not isinstance(networks, Dense | Conv):
        raise ValueError(f"networks is {networks!r}; expected Dense(...), Conv(...) or one of {', '.join(PRESETS)}.")
    return networks


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Encoder(nn.Module):
    """q(z | y_o, x_o): mean and variance of each latent dimension, from values and masks.

    Args:
        architecture: which networks.
        measurements: their layout, or D where all are Gaussian.
        features: width of the covariate features.
        latent_dim: L.
        rows: how many rows the head sees at once.
        outputs: numbers per latent dimension.
    """

    def __init__(
        self, architecture: Dense | Conv, measurements: int | MeasurementSpace, features: int, latent_dim: int,
        rows: int = 1, outputs: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        self.measurements = MeasurementSpace.of(measurements)
        self.trunk: nn.Module
        if isinstance(architecture, Conv):
            _check_image(architecture, len(self.measurements), self.measurements.width // 2)
            first, second = architecture.encoder_filters
            self.trunk = nn.Sequential(
                nn.Unflatten(1, (2, *architecture.image)),
                nn.Conv2d(2, first, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2),
                nn.Conv2d(first, second, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2),
                nn.Flatten(),
            ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fmt: skip
            inputs = self.trunk(torch.zeros(1, self.measurements.width)).shape[1]
        else:
            self.trunk, inputs = nn.Identity(), self.measurements.width
        self.head = mlp([rows * inputs + features, *architecture.encoder, outputs * latent_dim])

    def forward(self, y: Tensor, y_mask: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        image = self.trunk(self.measurements.features(y, y_mask))
        mean, log_var = self.head(torch.cat([image, features], dim=1)).chunk(2, dim=1)
        return mean, log_var.clamp(*LOG_VAR_RANGE).exp()


class Decoder(nn.Module):
    """Location of y, or what else its families take, given z, and given x too where `features` > 0 (the CVAE)."""

    def __init__(self, architecture: Dense | Conv, latent_dim: int, features: int, measurements: int) -> None:
        super().__init__()
        inputs = latent_dim + features
        self.linear: nn.Linear | None = None
        if isinstance(architecture, Conv):
            _check_image(architecture, measurements, measurements)
            height, width = (side // 4 for side in architecture.image)
            first, second = architecture.decoder_filters
            self.network = nn.Sequential(
                *mlp([inputs, *architecture.decoder, first * height * width]), nn.ReLU(),
                nn.Unflatten(1, (first, height, width)),
                nn.ConvTranspose2d(first, second, 4, stride=2, padding=1), nn.ReLU(),
                nn.ConvTranspose2d(second, 1, 4, stride=2, padding=1), nn.Flatten(),
            ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fmt: skip
        else:
            self.network = mlp([inputs, *architecture.decoder, measurements])
            if architecture.linear and architecture.decoder:
                self.linear = nn.Linear(inputs, measurements)
                for parameter in self.network[-1].parameters():
                    nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.network(inputs)
        return out if self.linear is None else out + self.linear(inputs)


def _check_image(architecture: Conv, measurements: int, channel: int) -> None:
    height, width = architecture.image
    if channel != measurements:
        raise ValueError("Conv(...) is for numbers, counts and bernoulli columns; categories need networks=Dense(...).")
    if height * width != measurements:
        raise ValueError(
            f"Conv(image={architecture.image}) expects {height * width} measurements (pixels row by row), "
            f"got {measurements}."
        )
    if min(height, width) < 12:
        raise ValueError(f"Conv(image={architecture.image}): each side must have at least 12 pixels; pad the images.")
    if height % 4 or width % 4:
        raise ValueError(f"Conv(image={architecture.image}): height and width must be divisible by 4; pad the images.")
