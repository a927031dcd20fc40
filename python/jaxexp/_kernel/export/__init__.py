"""From a jitted function to a `Function`.

`lower.py` traces and lowers with JAX, `export.py` wraps and serializes the module, `vjp.py` builds the VJP, which is exported
when somebody asks for it, in the surroundings of the first export (`surroundings.py`).
"""
