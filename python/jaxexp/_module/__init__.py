"""The StableHLO module: parsed, checked, wrapped, brought up to date.

May import: _function _releases _artifact.
"""
