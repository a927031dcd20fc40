"""Wrote this SavedModel, with JAX 0.8.1 and TensorFlow 2.21: ``python write.py FOLDER``."""

import sys

import numpy as np
import tensorflow as tf
from jax import numpy as jnp
from jax.experimental import jax2tf

params = {"w": tf.Variable(np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3)), "b": tf.Variable(np.ones(3, "f4"))}
apply = jax2tf.convert(
    lambda params, x: jnp.tanh(x @ params["w"] + params["b"]),
    polymorphic_shapes=[None, "(b, 4)"],
    with_gradient=False,
)
module = tf.Module()
module.params = params
module.f = tf.function(
    lambda x: apply(params, x), autograph=False, input_signature=[tf.TensorSpec((None, 4), tf.float32)]
)
tf.saved_model.save(module, sys.argv[1])
