"""The rule pack as the command line sees it: where it lies, and how it becomes another profile."""

from laggard_cli.rules.profiles import RulesError
from laggard_cli.rules.render import render, rules_folder

__all__ = ["RulesError", "render", "rules_folder"]
