"""Images with missing pixels, and their imputations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap

from lacova.plot.style import new_axes

Floats = npt.NDArray[np.float64]
# Missing pixels are lighter than all others, so that they can be told apart in greyscale too.
GREYS = LinearSegmentedColormap.from_list("greys", ["black", "#b0b0b0"])
MISSING = ListedColormap(["#ffd3a3"])


def images(rows: Mapping[str, Any], shape: tuple[int, int], *, most: int = 8, ax: Axes | None = None) -> Axes:
    """Plot a grid with a line per kind of image, such as true, masked and imputed; missing pixels are light orange.

    Args:
        rows: by the name of the line, a table or array with an image per row and a pixel per column.
        shape: height and width of the images.
        most: the maximum number of images in a line.
        ax: the axes to draw on; None for a new figure.
    """
    if not rows:
        raise ValueError("rows is empty; expected arrays of images by name, such as {'true': ..., 'imputed': ...}.")
    lines = {name: np.asarray(values, float)[:most] for name, values in rows.items()}
    height, width = shape
    counts = {len(values) for values in lines.values()}
    for name, values in lines.items():
        if values.ndim != 2 or values.shape[1] != height * width:
            raise ValueError(f"{name!r} has the shape {values.shape}; expected images × {height * width} pixels.")
    if len(counts) > 1 or 0 in counts:
        raise ValueError(f"the lines have {sorted(counts)} images; expected as many in each, and one at least.")
    mosaic = _tiled(lines, height, width)
    count = counts.pop()
    ax = new_axes(ax, (0.8 + 0.95 * count, 0.3 + 0.95 * len(lines) * height / width))
    known = np.concatenate([values.ravel() for values in lines.values()])
    extent = (0, mosaic.shape[1], mosaic.shape[0], 0)
    placement: dict[str, Any] = {"extent": extent, "interpolation": "nearest"}
    ax.imshow(np.ma.masked_invalid(mosaic), cmap=GREYS, vmin=np.nanmin(known), vmax=np.nanmax(known), **placement)
    holes = np.ma.masked_where(~np.isnan(mosaic), np.ones(mosaic.shape))
    if holes.count():
        ax.imshow(holes, cmap=MISSING, **placement)
    ax.set(xlim=extent[:2], ylim=extent[2:], xticks=[], aspect="equal")
    ax.set_yticks([(k + 0.5) * (height + 1) for k in range(len(lines))], list(lines))
    ax.tick_params(axis="y", length=0)
    ax.spines[:].set_visible(False)
    return ax


def _tiled(lines: Mapping[str, Floats], height: int, width: int) -> Floats:
    """Put images side by side; the pixels between them are infinite, missing pixels are NaN."""
    count = len(next(iter(lines.values())))
    mosaic = np.full((len(lines) * (height + 1) - 1, count * (width + 1) - 1), np.inf)
    for k, values in enumerate(lines.values()):
        for j, image in enumerate(values.reshape(-1, height, width)):
            top, left = k * (height + 1), j * (width + 1)
            mosaic[top : top + height, left : left + width] = image
    return mosaic
