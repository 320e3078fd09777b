"""Dense and convolutional networks: the paper's sizes, gaps as inputs, and what is refused."""

import pytest
import torch
from torch import nn

from lacova import Conv, Dense
from lacova.data.measurement_space import MeasurementSpace
from lacova.nn.networks import LOG_VAR_RANGE, PRESETS, mlp, resolve

SMALL = Conv(image=(12, 16), encoder_filters=(3, 4), decoder_filters=(5, 6), encoder=(7,), decoder=(9,))
ARCHITECTURES = [Dense((6, 4), (4, 6)), Dense((), ()), SMALL]


def encoder_of(networks, measurements, features, latent_dim):
    """Build an encoder of Gaussian measurements."""
    return networks.build_encoder(MeasurementSpace.of(measurements), features, latent_dim)


def of_type(module, kind):
    return [m for m in module.modules() if isinstance(m, kind)]


def widths(module):
    return [(m.in_features, m.out_features) for m in of_type(module, nn.Linear)]


def layer_names(module):
    return [type(m).__name__ for m in module.modules() if not list(m.children())]


def encoder_inputs(architecture, rows=3, features=2):
    measurements = 192 if isinstance(architecture, Conv) else 5
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(rows, measurements, generator=generator)
    mask = torch.rand(rows, measurements, generator=generator) < 0.6
    return y, mask, torch.randn(rows, features, generator=generator)


def test_clinical_preset_has_the_sizes_of_the_paper():
    encoder = encoder_of(resolve("clinical"), measurements=7, features=5, latent_dim=4)
    decoder = resolve("clinical").build_decoder(inputs=4 + 3, outputs=7)
    assert widths(encoder) == [(2 * 7 + 5, 128), (128, 64), (64, 2 * 4)]
    assert widths(decoder) == [(4 + 3, 64), (64, 128), (128, 7), (4 + 3, 7)]  # the last one is the linear path
    assert layer_names(decoder.network) == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]


def test_a_decoder_with_a_linear_path_starts_linear_and_learns_more():
    torch.manual_seed(0)
    decoder = Dense((8,), (16,), linear=True).build_decoder(inputs=2, outputs=3)
    z = torch.randn(50, 2)
    straight = torch.lerp(decoder(z[:1]), decoder(z[1:2]), 0.3)
    torch.testing.assert_close(decoder(torch.lerp(z[:1], z[1:2], 0.3)), straight)
    decoder(z).square().sum().backward()
    assert all(p.grad is not None for p in decoder.parameters())
    assert decoder.network[-1].weight.grad.abs().sum() > 0  # so that it leaves zero
    assert Dense((8,), (16,)).build_decoder(inputs=2, outputs=3).linear is None
    assert Dense((8,), (), linear=True).build_decoder(inputs=2, outputs=3).linear is None  # it is linear already


def test_rotated_digits_encoder_has_the_sizes_of_the_paper():
    encoder = encoder_of(resolve("rotated-digits"), measurements=36 * 36, features=5, latent_dim=16)
    convolutions = of_type(encoder, nn.Conv2d)
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.stride) for c in convolutions] == [
        (2, 144, (3, 3), (2, 2)),
        (144, 144, (3, 3), (2, 2)),
    ]
    assert [(p.kernel_size, p.stride) for p in of_type(encoder, nn.MaxPool2d)] == [(2, 2), (2, 2)]
    assert widths(encoder) == [(144 * 2 * 2 + 5, 300), (300, 30), (30, 2 * 16)]
    assert layer_names(encoder.trunk) == ["Unflatten", *["Conv2d", "ReLU", "MaxPool2d"] * 2, "Flatten"]


def test_rotated_digits_decoder_has_the_sizes_of_the_paper():
    decoder = resolve("rotated-digits").build_decoder(inputs=16, outputs=36 * 36)
    assert widths(decoder) == [(16, 30), (30, 300), (300, 256 * 9 * 9)]
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.stride) for c in of_type(decoder, nn.ConvTranspose2d)] == [
        (256, 256, (4, 4), (2, 2)),
        (256, 1, (4, 4), (2, 2)),
    ]
    assert decoder(torch.zeros(2, 16)).shape == (2, 36 * 36)


@pytest.mark.parametrize("networks", [None, 3, Dense, (8, 8)])
def test_what_is_no_networks_is_refused(networks):
    with pytest.raises(
        ValueError,
        match=r"expected Dense\(\.\.\.\), Conv\(\.\.\.\), a dataclass derived from lacova\.nn\.Networks, or",
    ):
        resolve(networks)


def test_dense_digits_preset_has_the_dense_widths_alone():
    assert resolve("dense-digits") == Dense((300, 30), (30, 300))


def test_resolve_returns_networks_as_they_are():
    assert resolve(SMALL) is SMALL
    assert {name: resolve(name) for name in PRESETS} == PRESETS


def test_unknown_preset_is_refused_with_the_known_ones():
    message = r"^networks is 'clinic'; the presets are clinical, rotated-digits, dense-digits, or pass Dense"
    with pytest.raises(ValueError, match=message):
        resolve("clinic")


@pytest.mark.parametrize("build", [lambda conv, d: encoder_of(conv, d, 2, 3), lambda conv, d: conv.build_decoder(5, d)])
@pytest.mark.parametrize(
    ("conv", "measurements", "message"),
    [
        (Conv(), 784, r"^Conv\(image=\(36, 36\)\) expects 1296 measurements \(pixels row by row\), got 784\.$"),
        (Conv(image=(28, 30)), 840, r"^Conv\(image=\(28, 30\)\): height and width must be divisible by 4; pad"),
    ],
)
def test_wrong_image_size_is_refused(build, conv, measurements, message):
    with pytest.raises(ValueError, match=message):
        build(conv, measurements)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_shapes(architecture):
    y, mask, features = encoder_inputs(architecture)
    mean, var = encoder_of(architecture, y.shape[1], 2, 3)(y, mask, features)
    assert mean.shape == var.shape == (3, 3)
    assert architecture.build_decoder(3 + 2, y.shape[1])(torch.zeros(3, 5)).shape == y.shape


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_masked_measurements_do_not_reach_the_encoder(architecture):
    y, mask, features = encoder_inputs(architecture)
    encoder = encoder_of(architecture, y.shape[1], 2, 3)
    before = encoder(y, mask, features)
    hidden = encoder(torch.where(mask, y, 1e6), mask, features)
    moved = encoder(torch.where(mask, y + 1.0, y), mask, features)
    assert torch.equal(before[0], hidden[0])
    assert torch.equal(before[1], hidden[1])
    assert not torch.allclose(before[0], moved[0])


def test_an_observed_zero_and_a_gap_give_different_outputs():
    encoder = encoder_of(Dense((6,), ()), 2, 1, 3)
    y, features = torch.zeros(1, 2), torch.zeros(1, 1)
    seen = encoder(y, torch.tensor([[True, True]]), features)[0]
    gap = encoder(y, torch.tensor([[True, False]]), features)[0]
    assert not torch.allclose(seen, gap)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_encoder_variance_stays_in_range(sign):
    encoder = encoder_of(Dense((), ()), 1, 1, 2)
    with torch.no_grad():
        encoder.head[0].bias[2:] = sign * 1e4
    _, var = encoder(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1))
    limit = LOG_VAR_RANGE[0] if sign < 0 else LOG_VAR_RANGE[1]
    torch.testing.assert_close(var, torch.tensor([[limit, limit]]).exp())


def test_conv_reads_pixels_row_by_row():
    # An impulse in one pixel reaches the first convolution at its row and column, in the channel of values.
    encoder = encoder_of(SMALL, 192, 0, 1)
    y = torch.zeros(1, 192)
    y[0, 3 * 16 + 5] = 1.0
    image = encoder.trunk[0](torch.cat([y, torch.ones(1, 192)], 1))
    assert image.shape == (1, 2, 12, 16)
    assert image[0, 0].nonzero().tolist() == [[3, 5]]
    assert (image[0, 1] == 1).all()


def test_decoder_without_hidden_layers_is_linear():
    decoder = Dense((), ()).build_decoder(2 + 1, 4).double()
    a, b = torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    zero = decoder(torch.zeros(1, 3, dtype=torch.float64))
    torch.testing.assert_close(decoder(2 * a - 3 * b), 2 * decoder(a) - 3 * decoder(b) + 2 * zero)
    assert layer_names(decoder) == ["Linear"]


def test_encoder_mean_without_hidden_layers_is_linear_in_the_observed():
    encoder = encoder_of(Dense((), ()), 2, 1, 3).double()
    mask, features = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.float64)
    zero, a, b = (torch.tensor([row], dtype=torch.float64) for row in ([0, 0], [1, -2], [0.5, 4]))
    mean = [encoder(y, mask, features)[0] for y in (zero, a, b, a + b)]
    torch.testing.assert_close(mean[3], mean[1] + mean[2] - mean[0])


def test_mlp_has_relu_between_layers_only():
    assert layer_names(mlp([3, 4, 5, 2])) == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert widths(mlp([3, 4, 5, 2])) == [(3, 4), (4, 5), (5, 2)]
    assert layer_names(mlp([3, 2])) == ["Linear"]


@pytest.mark.parametrize("image", [(4, 12), (12, 8)])
def test_image_too_small_for_the_pooling_is_refused_by_name(image):
    # Both sides are divisible by 4, but the second max pooling would have no pixel left.
    with pytest.raises(ValueError, match=r"^Conv\(image="):
        encoder_of(Conv(image=image), image[0] * image[1], 0, 1)


def test_categories_are_refused_by_convolutions():
    pixels = MeasurementSpace(("gaussian",) * 191 + ("categorical",), (0,) * 191 + (3,), ((-1.0, 1.0),) * 192)
    with pytest.raises(ValueError, match=r"^Conv\(...\) is for numbers, counts and bernoulli columns; categories need"):
        SMALL.build_encoder(pixels, 0, 1)
