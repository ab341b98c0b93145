"""Rufus-Air: an eight-stage post-training recipe as running software."""

__version__ = "0.1.0"
