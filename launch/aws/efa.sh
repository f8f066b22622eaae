# Sourced before sbatch, which passes it on: NCCL over EFA.
# Sources: documentation of NCCL (NCCL_NET, NCCL_DEBUG), of libfabric (fi_efa), and aws-ofi-nccl.
export NCCL_NET="AWS Libfabric"  # the plugin aws-ofi-nccl; without it a job fails rather than crawls
export FI_PROVIDER=efa           # libfabric's provider
export FI_EFA_USE_DEVICE_RDMA=1  # GPUs write to the network themselves (p4d, p5)
export NCCL_DEBUG=WARN           # INFO shows which network is used
export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:${LD_LIBRARY_PATH:-}
