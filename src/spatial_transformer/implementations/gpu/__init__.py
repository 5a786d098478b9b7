"""The fused kernels in Triton: source positions in registers, gradients of the numbers summed in the kernel.

One program takes a block of pixels of one image. A block is made of small tiles (8 x 4 pixels in 2D), so that
the threads of a warp read a compact patch of the image however the transform turns it. ``triton_cuts`` says
how large blocks are, ``fused_triton`` launches.
"""
