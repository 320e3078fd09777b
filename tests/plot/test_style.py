"""Styles that differ without colour, and axes."""

import pytest

from lacova import plot
from lacova.plot.style import COLOURS, DASHES, MARKERS


def test_marks_differ_without_colour():
    assert len(COLOURS) == len(set(COLOURS)) == len(set(MARKERS)) == len(set(map(str, DASHES)))


def test_axes_are_axes(model):
    with pytest.raises(TypeError, match=r"ax is a int; expected matplotlib axes"):
        plot.training(model, ax=3)
