"""Servers under the load of thousands of ranks: simulated nodes serve, or push, what real ones do.

Values come from the model of the evaluation, so that verdicts can be right or wrong; connections, parsing,
storage and rules are the servers' own.
"""
