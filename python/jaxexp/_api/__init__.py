"""The public classes, and the functions that return them: put together here, above the wings.

`Exported` is the kernel's `Function` with the verbs of the wings: weights, executables, reading back, display.
`BoundExported` is an `Exported` with its weights. `export`, `deserialize` and `load_many` are the kernel's functions
with what the wings add: weights and policies.

What surprises: a wing is imported when a verb first needs it. `deserialize` and `call` need only the kernel.
"""
