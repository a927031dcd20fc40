"""Code that was compiled earlier, in a file beside a function.

`precompile` lowers and compiles a call as `call` would, and adds the code with the conditions under which it is valid,
to a file or to the compile cache. `attach` gives such a file to a function. A call then finds code whose
conditions hold, and runs it without a trace.

What surprises: the code is native, so no policy can check it. If code fails to run, it is given up, and the call is
compiled as usual.
"""
