"""Builds and installs Horovod, BytePS and MPI: ``python -m ooodist.install_engines``."""
