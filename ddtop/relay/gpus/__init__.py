"""The GPUs of this host: NVML, and the RAS service of NCCL."""
