"""Quantities in words, each unit named for what it is: GB is 1e9 bytes, GiB is 2^30."""

from __future__ import annotations

_GIB = float(1 << 30)
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BINARY = ((float(1 << 40), "TiB"), (_GIB, "GiB"), (float(1 << 20), "MiB"), (float(1 << 10), "KiB"))
_MANY = ((1e15, "P"), (1e12, "T"), (1e9, "G"))


def gigabytes(size: float) -> str:
    """Bytes as "16.06 GB"."""
    return f"{size / 1e9:,.2f} GB" if size < 100e9 else f"{size / 1e9:,.1f} GB"


def both_sizes(size: float) -> str:
    """Bytes in decimal and in binary units: "16.06 GB (14.96 GiB)"; below a million all digits."""
    if size < 1024:
        return f"{size:.0f} bytes"
    decimal = f"{size:,.0f} bytes" if size < 1e6 else _scaled(size, _DECIMAL)
    return f"{decimal} ({_scaled(size, _BINARY)})"


def decimal_size(size: float) -> str:
    """Bytes as "16.06 GB", "327.7 MB" or "131.1 kB"."""
    return f"{size:.0f} bytes" if size < 1000 else _scaled(size, _DECIMAL)


def time_text(seconds: float) -> str:
    """Seconds as "985 us", "4.57 ms", "1.25 s" or "12 min", always three digits."""
    if seconds < 0.9995e-3:
        return f"{three_digits(seconds * 1e6)} us"
    if seconds < 0.9995:
        return f"{three_digits(seconds * 1e3)} ms"
    return f"{three_digits(seconds)} s" if seconds < 600 else f"{seconds / 60:,.0f} min"


def given_time(seconds: float) -> str:
    """Seconds that a person wrote: "50 ms", "1.5 s"."""
    return f"{seconds * 1e3:.6g} ms" if seconds < 1 else f"{seconds:.6g} s"


def three_digits(number: float) -> str:
    """A number from 0 on with three digits, or with all before the point."""
    if number >= 99.95:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"


def flop_text(work: float) -> str:
    """Work as "2.90e13 FLOP"."""
    return f"{_exponential(work)} FLOP"


def short(number: float) -> str:
    """A large number as "8.03e9", a small one as it is."""
    return f"{number:,.0f}" if number < 1e6 else _exponential(number)


def flop_rate(rate: float) -> str:
    """FLOP per second as "989 TFLOP/s"."""
    unit, letter = next(((size, letter) for size, letter in _MANY[1:] if rate >= size), _MANY[-1][:2])
    return f"{rate / unit:,.0f} {letter}FLOP/s" if rate >= 100 * unit else f"{rate / unit:.3g} {letter}FLOP/s"


def byte_rate(rate: float) -> str:
    """Bytes per second as "3.35 TB/s"."""
    return f"{rate / 1e12:.3g} TB/s" if rate >= 1e12 else f"{rate / 1e9:.3g} GB/s"


def percent(ratio: float) -> str:
    """A share as "70%", a small one as "0.6%"."""
    return f"{ratio:.0%}" if ratio >= 0.01 or not ratio else f"{ratio:.1%}"


def whole_or_tenth(count: float) -> str:
    """A mean number of things: "32", "32.5"."""
    return f"{count:,.0f}" if count == int(count) or count >= 100 else f"{count:,.1f}"


def several(count: int, noun: str) -> str:
    """ "1 worker", "3 workers"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _exponential(number: float) -> str:
    return f"{number:.2e}".replace("e+0", "e").replace("e+", "e")


def _scaled(size: float, units: tuple[tuple[float, str], ...]) -> str:
    unit, name = next((pair for pair in units if size >= pair[0]), units[-1])
    scaled = size / unit
    return f"{scaled:,.2f} {name}" if scaled < 100 else f"{scaled:,.1f} {name}"
