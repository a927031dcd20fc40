"""`jax.vmap` of a call.

A mapped call is a primitive of its own. It is one call if the function has a `batch_dim`; otherwise the module is read back
and mapped; otherwise it is a loop, and the log says why. Derivatives come from the stored VJPs.
"""
