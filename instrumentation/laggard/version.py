"""The versions of the distribution and of the rule pack in it."""

__version__ = "0.1.0"

#: Of the rules, which change at a pace of their own; the series ``laggard_rules_info`` carries it too.
PACK_VERSION = "0.1.0"

#: What ``--version`` of a command says after the command's name.
VERSIONS = f"{__version__} (rules {PACK_VERSION})"
