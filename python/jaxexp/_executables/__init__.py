"""Code that was compiled earlier, in a file beside a function.

`precompile` lowers and compiles a call as `call` would, and appends the code with the conditions under which it is valid.
`attach` gives a function such a file. A call then finds code whose conditions hold, and runs it without a trace.

What surprises: the code is native code, so no policy can say what it does. Code that fails to run is given up, and the call
is compiled as always.
"""
