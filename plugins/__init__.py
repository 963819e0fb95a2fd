"""Wicketgate: tenants, grants and residency for the LiteLLM proxy.

Imports point one way: doors -> runtime -> (ledger, engines, telemetry) -> policy.
Nobody imports a door. `tests/unit/test_layers.py` holds the rule.
"""
