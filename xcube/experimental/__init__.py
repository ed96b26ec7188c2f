"""What JAX keeps under `jax.experimental`, under the same names."""

from xcube.callbacks import io_callback as io_callback
from xcube.settings import disable_x64 as disable_x64
from xcube.settings import enable_x64 as enable_x64
