"""A program and its weights: large arrays that stay outside the module.

    files/    files of tensors, without JAX: read, written, and saved beside a program (`saving.py` has the protocol)
    arrays/   `Weights`: a mapping that reads a weight when it is first used, and puts it on its devices
    bound/    programs whose first argument is a dict of weights: lifted out of a trace, bound, saved

A `Source` is one tensor, wherever its bytes are: an array, a part of a file, of an archive, or of another dtype. A
`Table` is what a trailer says of an artifact's tensors. `Tensors` finds each as a `Source`, which is read later;
`StoredTensors` finds them in files beside the artifact, and an `Opening` says how these are opened.

What else is going on here? A file has a second name while it is saved. Tied weights are one weight with several names.
Weights stay outside of VJPs' modules, too (`StillThere`). NumPy arrays may change, and are compared with their digests.
"""
