"""Calls: the primitive and its rules, eager calls, `specialize`, `prefetch`.

May import: _module _function _artifact _io.
"""
