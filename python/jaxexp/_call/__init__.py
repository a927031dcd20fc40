"""Calls: the primitive and its rules, eager calls, `specialize`, `prefetch`.

May import: _compiled _raise _module _codec _function _artifact _io.
"""
