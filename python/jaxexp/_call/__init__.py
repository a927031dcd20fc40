"""Calls of an exported function: the primitive with its rules, eager calls, `specialize`, `prefetch`."""
