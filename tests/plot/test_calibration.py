"""Calibration and PIT histograms."""

from dataclasses import replace

from lacova import plot
from lacova.analysis.recovery import COVERAGES
from tests.plot.cases import legend


def test_calibration_and_pit(recovery):
    ax = plot.calibration(recovery)
    assert any(text.startswith("all (") for text in legend(ax))
    assert len(ax.lines[-1].get_xdata()) == len(COVERAGES)
    bins = plot.pit(recovery, "alt", bins=5)
    alt = (recovery.numbers["column"] == "alt").sum()
    assert sum(patch.get_height() for patch in bins.containers[0]) == alt
    assert "alt" in bins.get_ylabel()
    assert f"by chance, of all {len(recovery.numbers)}" in legend(ax)  # not of a single column
    few = plot.pit(replace(recovery, numbers=recovery.numbers.head(5)))
    assert few.get_ylim()[0] == 0  # the band of chance would reach below zero
