# Sourced before sbatch, which passes it on: NCCL and MPI over EFA.
# Sources: AWS, "Get started with EFA and NCCL", EC2 User Guide; aws-ofi-nccl's documentation.
export FI_PROVIDER=efa           # libfabric's provider; without EFA a job fails rather than crawls
export FI_EFA_USE_DEVICE_RDMA=1  # GPUs write to the network themselves (p4d, p5)
export NCCL_DEBUG=WARN           # INFO shows whether "NET/OFI Selected Provider is efa"
export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:${LD_LIBRARY_PATH:-}
