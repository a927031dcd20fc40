"""Code that was compiled earlier, in a file beside a function.

`precompile` lowers and compiles a call as `call` would, and appends the code with the conditions under which it is
valid. `attach` gives such a file to a function. A call then finds code whose conditions hold, and runs it without a
trace. `prefetch` compiles many functions ahead of their first call, without a file.

What surprises: the code is native, so no policy can check it. If code fails to run, it is given up, and the call is
compiled as usual.
"""
