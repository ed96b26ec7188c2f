"""What JAX keeps under `jax.experimental`, under the same names."""

from xcube.callbacks import io_callback as io_callback
