"""The parts of the CPU kernels, one thing a file: ``fused_numba`` puts them together."""
