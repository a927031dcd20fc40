"""From bytes to an `Exported`: one or many, under a policy.

May import: _bound _exported _compiled _codec _module _function _artifact _io.
"""
