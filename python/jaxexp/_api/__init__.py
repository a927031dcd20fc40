"""The public classes, and the functions that return them: put together here, above the wings.

`Exported` is the kernel's `Function` with the verbs of the wings: weights, executables, reading back, how it looks.
`BoundExported` is an `Exported` with its weights. `export`, `deserialize` and `load_many` are the kernel's functions with
what the wings add to them: weights, a policy.

What surprises: wings are imported when a verb needs one. Loading a function and calling it needs only the kernel.
"""
