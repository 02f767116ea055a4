"""Classes of trust and their words."""

from __future__ import annotations

from hermes.hardware.trust import GUESS, MEASURED, NEAR, Trust, worst


def test_words_name_the_class_and_both_ends() -> None:
    assert Trust("near", 0.9, 1.25).text() == "near, -10 to +25%"


def test_the_least_certain_class_decides() -> None:
    assert worst(("measured", "guess", "near")) == "guess"
    assert worst(("measured",)) == "measured"


def test_classes_widen_as_certainty_falls() -> None:
    widths = [trust.high / trust.low for trust in (MEASURED, NEAR, GUESS)]
    assert widths == sorted(widths)
