"""Contrast and colour blindness by computation."""

from __future__ import annotations

from rich.color import Color

RGB = tuple[float, float, float]
BLIND = {
    # Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB.
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear(colour: Color | None) -> RGB:
    """Linear RGB, each from 0 to 1."""
    assert colour is not None
    triplet = colour.get_truecolor()

    def one(value: int) -> float:
        part = value / 255
        return part / 12.92 if part <= 0.04045 else float(((part + 0.055) / 1.055) ** 2.4)

    return one(triplet.red), one(triplet.green), one(triplet.blue)


def luminance(colour: RGB) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def contrast(one: Color | None, other: Color | None) -> float:
    """The contrast of WCAG 2, from 1 to 21."""
    bright, dark = sorted((luminance(linear(one)), luminance(linear(other))), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def seen_by(colour: RGB, blindness: str) -> RGB:
    """The colour that a person with this colour blindness sees."""
    rows = BLIND[blindness]
    red, green, blue = (
        min(max(sum(part * value for part, value in zip(row, colour, strict=True)), 0.0), 1.0)
        for row in rows
    )
    return red, green, blue


def lab(colour: RGB) -> RGB:
    """CIE L*a*b* of linear RGB under D65."""
    red, green, blue = colour
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883

    def root(value: float) -> float:
        return float(value ** (1 / 3)) if value > 0.008856 else 7.787 * value + 16 / 116

    return 116 * root(y) - 16, 500 * (root(x) - root(y)), 200 * (root(y) - root(z))


def difference(one: RGB, other: RGB) -> float:
    """Distance in L*a*b*: 2 is just visible side by side, 10 at a glance."""
    return float(sum((a - b) ** 2 for a, b in zip(lab(one), lab(other), strict=True)) ** 0.5)
