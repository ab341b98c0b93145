"""Megatron-core as what trains a policy: the same protocol as the torch trainer, cut over many GPUs."""
