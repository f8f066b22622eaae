"""Every private or undocumented name of TensorFlow, Keras, Horovod and BytePS that ooodist uses.

Each stands behind one function here, and nowhere else (ruff's rule SLF001 sees to that). Its
docstring says what the name is and why nothing public will do. tests/compat has a contract for each
of them, whose failure says what has changed upstream; scripts/test.sh tries them on newer
versions of TensorFlow and Keras, too.
"""
