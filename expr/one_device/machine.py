"""Tells which GPU TensorFlow sees, with which CUDA and cuDNN, and that its libraries work."""

import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
if not gpus:
    raise SystemExit("TensorFlow sees no GPU: its log above says which library is missing")
build = tf.sysconfig.get_build_info()
print(
    f"TensorFlow {tf.__version__} for CUDA {build['cuda_version']}",
    f"cuDNN {build['cudnn_version']}",
)
for gpu in gpus:
    print(gpu.name, tf.config.experimental.get_device_details(gpu))

x = tf.random.normal((8, 32, 32, 16))
kernel = tf.random.normal((3, 3, 16, 16))


def convolved_twice(x: tf.Tensor) -> tf.Tensor:
    y = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
    return tf.reduce_sum(
        tf.matmul(tf.reshape(y, (8, -1)), tf.reshape(y, (8, -1)), transpose_b=True)
    )


for name, function in (
    ("eager", convolved_twice),
    ("graph", tf.function(convolved_twice)),
    ("XLA", tf.function(convolved_twice, jit_compile=True)),
):
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    gradient = tape.gradient(value, x)
    print(
        f"{name}: cuBLAS, cuDNN, forward and backward: {float(value):.6e}",
        float(gradient[0, 0, 0, 0]),
    )
