"""Triton kernels of the core: forward and backward on CUDA devices, and on the CPU under Triton's interpreter."""
