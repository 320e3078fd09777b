"""The progress bar: silent by default, and wide enough for the terms in a terminal."""

from tests.models.cases import numbered_visits, small_cvae
from tests.tables import VISITS


def test_progress_is_silent_by_default(capfd):
    small_cvae(VISITS).fit(numbered_visits(), max_epochs=2)
    assert capfd.readouterr() == ("", "")
    small_cvae(VISITS).fit(numbered_visits(), max_epochs=2, progress=True)
    output = capfd.readouterr()
    assert output.out == ""
    assert "elbo -" in output.err


def test_progress_shows_the_epoch_in_80_columns(capfd):
    small_cvae(VISITS).fit(numbered_visits(), max_epochs=2, progress=True)
    assert "2/2" in capfd.readouterr().err
