"""The version of the distribution; the rule pack carries its own."""

__version__ = "0.1.0"
