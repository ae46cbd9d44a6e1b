"""Servers under the load of thousands of ranks: simulated nodes serve, or push, what real ones do, over real connections.

Values come from the model of the evaluation, so that verdicts can be right or wrong; requests, parsing, storage and
rules are Prometheus' own.
"""
