"""Values on an emulated GPU: small tensors are computed on the CPU, and checkpoints of such values are never written."""
