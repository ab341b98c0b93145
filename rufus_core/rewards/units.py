"""Units of measurement: enough of them to tell when two quantities are the same, and when they can't be."""

from __future__ import annotations

import re
from decimal import Decimal

# A unit is known by a symbol, which takes the prefixes' symbols, and by names, which take their names.
_PREFIXES = {
    "p": ("pico", -12),
    "n": ("nano", -9),
    "u": ("micro", -6),
    "m": ("milli", -3),
    "c": ("centi", -2),
    "d": ("deci", -1),
    "k": ("kilo", 3),
    "M": ("mega", 6),
    "G": ("giga", 9),
    "T": ("tera", 12),
}
_METRIC = {
    "m": ("meter", "metre"),
    "g": ("gram", "gramme"),
    "s": ("second", "sec"),
    "A": ("ampere", "amp"),
    "K": ("kelvin",),
    "mol": ("mole",),
    "Hz": ("hertz",),
    "N": ("newton",),
    "Pa": ("pascal",),
    "J": ("joule",),
    "W": ("watt",),
    "C": ("coulomb",),
    "V": ("volt",),
    "F": ("farad",),
    "T": ("tesla",),
    "L": ("liter", "litre"),
    "eV": ("electronvolt",),
    "Ω": ("ohm",),
}
_OTHERS = {  # each is a dimension of its own, or a plain multiple of a metric unit
    "min": ("s", "60", ("minute",)),
    "h": ("s", "3600", ("hour", "hr")),
    "day": ("s", "86400", ()),
    "mi": ("mile", "1", ("mile",)),
    "ft": ("foot", "1", ("foot", "feet")),
    "in": ("inch", "1", ("inch", "inches")),
    "yd": ("yard", "1", ("yard",)),
    "lb": ("pound", "1", ("pound",)),
    "°": ("degree", "1", ("degree", "deg")),
    "rad": ("radian", "1", ("radian",)),
    "°C": ("°C", "1", ("celsius",)),
    "°F": ("°F", "1", ("fahrenheit",)),
    "dollar": ("dollar", "1", ("dollar", "usd")),
    "cent": ("cent", "1", ("cent",)),
    "week": ("week", "1", ("week",)),
    "month": ("month", "1", ("month",)),
    "year": ("year", "1", ("year", "yr")),
    "mph": ("mph", "1", ("mph",)),
    "atm": ("atm", "1", ("atmosphere",)),
    "cal": ("cal", "1", ("calorie",)),
}


def _table() -> dict[str, tuple[str, Decimal]]:
    known: dict[str, tuple[str, Decimal]] = {}
    for symbol, names in _METRIC.items():
        known[symbol] = (symbol, Decimal(1))
        for name in names:
            known[name] = known[name + "s"] = known[symbol]
        for short, (long, exponent) in _PREFIXES.items():
            scaled = (symbol, Decimal(1).scaleb(exponent))
            known[short + symbol] = scaled
            for name in names:
                known[long + name] = known[long + name + "s"] = scaled
    for symbol, (base, factor, names) in _OTHERS.items():
        for name in (symbol, *names):
            known[name] = known.setdefault(name + "s", (base, Decimal(factor)))
    known["l"] = known["L"]
    known["ml"] = known["mL"]
    known["hertz"] = known["Hz"]
    return known


KNOWN = _table()
_FACTOR = re.compile(r"(?P<name>[^\W\d_°]+|°[CF]?)(?:\^?\{?(?P<power>-?[1-9])\}?)?")
_SPLIT = re.compile(r"\s*(/|\bper\b)\s*|[\s*·⋅]+")

Unit = tuple[Decimal, tuple[tuple[str, int], ...]]


def parse_unit(text: str) -> Unit | None:
    """The factor to base units, and the base units with their powers: `km/h`, `m s^-1`; None for what isn't known.

    Case counts in symbols (`mW` and `MW`), not in names.
    """
    text = text.strip().replace("µ", "u").replace("μ", "u").replace("square ", "square_").replace("cubic ", "cubic_")
    factor, powers, sign = Decimal(1), dict[str, int](), 1
    position = 0
    while position < len(text):
        if between := _SPLIT.match(text, position):
            if between[1]:
                sign = -1
            position = between.end()
            continue
        times = 1
        for word, power in (("square_", 2), ("cubic_", 3)):
            if text.startswith(word, position):
                times, position = power, position + len(word)
        match = _FACTOR.match(text, position)
        known = match and (
            KNOWN.get(match["name"]) or KNOWN.get(match["name"].lower() if len(match["name"]) > 2 else "")
        )
        if not match or not known:
            return None
        power = sign * times * int(match["power"] or 1)
        powers[known[0]] = powers.get(known[0], 0) + power
        factor *= known[1] ** power
        position = match.end()
    if not powers:
        return None
    return factor, tuple(sorted((name, power) for name, power in powers.items() if power))
