"""Modules of other producers, as functions: StableHLO that PyTorch, TensorFlow or Reactant.jl wrote.

    source     text, bytes or a path ─ contents ─▶ bytecode
    module     bytecode ─ parse, tidy ─▶ a module with one public function, `main`
    signature  types and attributes of `main` ─▶ avals, shardings
    trees      names or indices ─▶ the order of arguments and results in the call
    function   all of this ─▶ a `Function`

`source.py` has the first step, and `from_stablehlo.py` the others.

What surprises: text is parsed in a process of its own, because hostile text crashes jaxlib's parser. Its bytecode is
checked here like that of an artifact. Derivatives are those of the module as it is written: `stop_gradient` and custom
rules of its source are gone, so a caller has to ask for them.
"""
