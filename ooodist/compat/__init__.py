"""Every private or undocumented name of TensorFlow, Keras, Horovod and BytePS that ooodist uses.

Each is wrapped by one function here and used nowhere else (ruff's rule SLF001 enforces that). Its
docstring says what the name is and why nothing public will do. tests/compat has a contract for each
of them, whose failure says what has changed upstream; scripts/test.sh also tries them on newer
versions of TensorFlow and Keras.
"""
