"""The kernels of ``fast_convolutions``: bfloat16 products on tensor cores, summed in float32, and no atomics.

Rows are positions in the order n, y, x. Sizes of images and filters are compiled in: a network has few.
``fast_convolutions_triton`` launches.
"""
