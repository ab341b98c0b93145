"""Words behind a number that are no unit: they change its value, or say that it isn't the answer."""

from __future__ import annotations

_SCALES = """
percent percentage pct k bn dozen dozens hundred hundreds thousand thousands million millions billion billions trillion
quadrillion half halves third thirds fourth fourths fifth fifths sixths sevenths eighth eighths ninths tenth tenths
hundredth hundredths thousandth thousandths millionths th
"""
_OPERATIONS = "plus minus times over mod choose factorial squared cubed twice double triple negative pi i e x to"
_RESERVATIONS = """
not no or and nor either neither is isn if but wrong false incorrect except unless instead for when where as the more
less fewer than least most about around nearly almost maybe perhaps
"""
NO_UNIT = frozenset(f"{_SCALES} {_OPERATIONS} {_RESERVATIONS}".split())
