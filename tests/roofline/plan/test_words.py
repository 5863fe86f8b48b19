"""Quantities in words."""

from __future__ import annotations

import pytest

from roofline.plan import words


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1000, "1000 bytes"),
        (131_072, "131,072 bytes (128.0 KiB)"),
        (327_680_000, "327.7 MB (312.5 MiB)"),
        (2**30, "1.07 GB (1.00 GiB)"),
        (16_060_522_496, "16.06 GB (14.96 GiB)"),
        (2**41, "2.20 TB (2.00 TiB)"),
    ],
)
def test_sizes_in_both_units(size, text):
    """GB counts powers of ten and GiB powers of two, and each is named for what it is."""
    assert words.both_sizes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 us"),
        (985.1e-6, "985 us"),
        (0.9996e-3, "1.00 ms"),
        (4.5686e-3, "4.57 ms"),
        (0.037, "37.0 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1.00 s"),
        (18.64, "18.6 s"),
        (599.0, "599 s"),
        (7200.0, "120 min"),
    ],
)
def test_times_have_three_digits(seconds, text):
    """Whatever the unit, three digits are shown."""
    assert words.time_text(seconds) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (words.given_time(0.05), "50 ms"),
        (words.given_time(1.5), "1.5 s"),
        (words.decimal_size(999), "999 bytes"),
        (words.decimal_size(131_072), "131.1 kB"),
        (words.gigabytes(70.56e9), "70.56 GB"),
        (words.gigabytes(141.1e9), "141.1 GB"),
        (words.flop_text(2.8967e13), "2.90e13 FLOP"),
        (words.flop_text(1.05e9), "1.05e9 FLOP"),
        (words.short(8_030_261_248), "8.03e9"),
        (words.short(524_288), "524,288"),
        (words.flop_rate(989.4e12), "989 TFLOP/s"),
        (words.flop_rate(15.7e12), "15.7 TFLOP/s"),
        (words.flop_rate(5e11), "500 GFLOP/s"),
        (words.byte_rate(3.35e12), "3.35 TB/s"),
        (words.byte_rate(864e9), "864 GB/s"),
        (words.several(1, "GPU"), "1 GPU"),
        (words.several(1200, "GPU"), "1,200 GPUs"),
        (words.percent(0.695), "70%"),
        (words.percent(0.0056), "0.6%"),
        (words.percent(0.0), "0%"),
        (words.whole_or_tenth(32.0), "32"),
        (words.whole_or_tenth(32.49), "32.5"),
        (words.three_digits(295.34), "295"),
        (words.three_digits(99.96), "100"),
        (words.three_digits(9.996), "10.0"),
    ],
)
def test_other_quantities(text, shown):
    """Each kind of quantity has one form."""
    assert text == shown
