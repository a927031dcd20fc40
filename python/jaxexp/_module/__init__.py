"""The StableHLO module of a function: parsed, checked, wrapped, and brought up to date."""
