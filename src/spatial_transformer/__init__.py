"""Spatial Transformer Networks (Jaderberg, Simonyan, Zisserman, Kavukcuoglu, NIPS 2015) for PyTorch."""

from .control_points import LearnedBasis, PiecewiseAffine, ThinPlateSpline
from .export import export_onnx
from .families import Affine, Attention, Projective, Similarity, Translation
from .family import Family
from .info import info
from .kernels import Kernel
from .localisers import ConvLocaliser, DenseLocaliser, Head
from .module import SpatialTransformer, param_groups
from .sampling import sample, warp
from .version import __version__ as __version__

__all__ = [
    "Affine",
    "Attention",
    "ConvLocaliser",
    "DenseLocaliser",
    "Family",
    "Head",
    "Kernel",
    "LearnedBasis",
    "PiecewiseAffine",
    "Projective",
    "Similarity",
    "SpatialTransformer",
    "ThinPlateSpline",
    "Translation",
    "export_onnx",
    "info",
    "param_groups",
    "sample",
    "warp",
]
