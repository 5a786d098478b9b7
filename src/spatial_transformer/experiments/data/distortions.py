"""The distorted digits of the paper's sections 4.1 and A.4 (R, RTS, P, E), and the pairs of A.1.

A distortion first *draws* its numbers for a batch, then is *applied* to the batch. Both are tensor code of
fixed shapes that never waits for the device, so both can be captured in a CUDA graph (after a first call,
which keeps what is always the same); ``RandomNumbers`` makes each replay draw anew. What the paper leaves
open is a field of the distortion, with its default.

Positions are in pixels counted from the centre of a canvas, x to the right and y down. Angles turn the digit
counter-clockwise. Thetas pull, in normalised coordinates, as everywhere (see ``coordinates``); E alone has
no theta of that kind, and gives its control points' offsets in pixels in its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from ... import control_points, coordinates, families, sampling
from ...family import Family
from .constants import kept
from .random_numbers import RandomNumbers, to_normal

DIGIT = 28  # pixels of a digit's image along each axis
HALF = DIGIT / 2


class Drawn(NamedTuple):
    """What was drawn for a batch of N.

    ``theta`` is the true transformation, a theta of the distortion's family that takes the canvas to the
    digit: ``family.inverse(theta)`` brings the digit back. Not so for E, which reads through the inverse of
    a spline, and no family has that: its ``theta`` is the control points' offsets in *pixels*, x and y of
    one after another, and where a pixel is read is ``Elastic.grid``.
    """

    theta: Tensor  # [N, P]; [N, 2, P] of pairs
    numbers: dict[str, Tensor]  # by their names in the paper: angle, scale, ...; each [N, ...]


class Distortion(Protocol):
    """Draws numbers for batches of digits, and applies them."""

    @property
    def family(self) -> Family: ...

    def draw(self, count: int, random: RandomNumbers, *, dtype: torch.dtype = torch.float32) -> Drawn:
        """Numbers for so many images."""

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        """The images [N, C, 28, 28] on their canvases, [N, C, size, size]"""


@dataclass(frozen=True)
class Rotated:
    """R: "a random rotation sampled uniformly between -90 and +90 degrees".

    On the digit's own 28 px a stroke in a corner may turn out of the canvas: of MNIST's digits 0.4 % lose
    more than a hundredth of their ink, and none a twentieth.
    """

    degrees: float = 90.0  # at most, to either side
    size: int = DIGIT  # of the canvas

    family: ClassVar[Family] = families.Affine()

    def draw(self, count: int, random: RandomNumbers, *, dtype: torch.dtype = torch.float32) -> Drawn:
        most = math.radians(self.degrees)
        angle = between(-most, most, random.uniform(count).to(dtype))
        one, middle = torch.ones_like(angle), angle.new_zeros(count, 2)
        return Drawn(placed(angle, one, middle, self.size), {"angle": angle})

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        return sampling.warp(images, drawn.theta, self.family, size=(self.size, self.size))


@dataclass(frozen=True)
class RotatedTranslatedScaled:
    """RTS: rotated by -45 to +45 degrees, scaled by 0.7 to 1.2, "placing the digit in a random location in a
    42 x 42 image, all with uniform distributions".

    Placed by the scaled frame, 0.01 % of MNIST's digits lose more than a hundredth of their ink beyond the
    canvas, and none three; by the frame it is 0.12 %.
    """

    degrees: float = 45.0
    scale: tuple[float, float] = (0.7, 1.2)
    size: int = 42
    # Where the digit's centre may lie: wherever its 28 px frame fits, scaled but not rotated ("scaled
    # frame"), or wherever a frame of 28 px would, whatever the scale ("frame").
    placement: str = "scaled frame"

    family: ClassVar[Family] = families.Affine()

    def __post_init__(self) -> None:
        one_of("placement", self.placement, ("scaled frame", "frame"))

    def draw(self, count: int, random: RandomNumbers, *, dtype: torch.dtype = torch.float32) -> Drawn:
        angle, scale, *place = random.uniform(4, count).to(dtype).unbind()
        most = math.radians(self.degrees)
        angle, scale = between(-most, most, angle), between(*self.scale, scale)
        half = HALF * scale if self.placement == "scaled frame" else torch.full_like(scale, HALF)
        centre = between(-1.0, 1.0, torch.stack(place, dim=1)) * (self.size / 2 - half)[:, None]
        return Drawn(
            placed(angle, scale, centre, self.size), {"angle": angle, "scale": scale, "centre": centre}
        )

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        return sampling.warp(images, drawn.theta, self.family, size=(self.size, self.size))


@dataclass(frozen=True)
class Projected:
    """P: scaled by 0.75 to 1, and "stretching each corner of an MNIST digit by an amount sampled from a
    normal distribution with zero mean and 5 pixel standard deviation"."""

    scale: tuple[float, float] = (0.75, 1.0)
    deviation: float = 5.0  # pixels along each axis
    size: int = DIGIT
    # Which corners move: those of the region that the canvas shows, in the digit's pixels ("pull"), or those
    # of the scaled digit on the canvas, in the canvas's ("push").
    direction: str = "pull"
    # How they move: along both axes, or by one number along the diagonal.
    along: str = "axes"

    family: ClassVar[Family] = families.Projective()

    def __post_init__(self) -> None:
        one_of("direction", self.direction, ("pull", "push"))
        one_of("along", self.along, ("axes", "diagonal"))

    def draw(self, count: int, random: RandomNumbers, *, dtype: torch.dtype = torch.float32) -> Drawn:
        uniform = random.uniform(9, count).to(dtype)
        scale, away = between(*self.scale, uniform[0]), to_normal(uniform[1:], self.deviation)
        corners = corner_signs(scale)  # [4, 2]
        if self.along == "axes":
            moved = away.T.unflatten(1, (4, 2))  # [N, 4, 2]
        else:
            moved = away[:4].T[:, :, None] * corners / math.sqrt(2)
        if self.direction == "pull":
            region = (self.size / 2) / scale
            theta = square_to(corners * region[:, None, None] / HALF + moved / HALF)
        else:
            shown = corners * (HALF * scale)[:, None, None] + moved
            theta = self.family.inverse(square_to(shown / (self.size / 2)))
        return Drawn(theta, {"scale": scale, "corners": moved})

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        return sampling.warp(images, drawn.theta, self.family, size=(self.size, self.size))


@dataclass(frozen=True)
class Elastic:
    """E: scaled by 0.75 to 1, "then randomly perturbing 16 control points of a thin plate spline arranged in
    a regular grid on the image by an amount sampled from a normal distribution with zero mean and 1.5 pixel
    standard deviation".

    ``Drawn.theta`` has by how many *pixels* each of the control points moves, before any scaling, and is not
    a theta of ``family``: none reads through a spline's inverse. ``grid`` is the true transformation.
    """

    scale: tuple[float, float] = (0.75, 1.0)
    deviation: float = 1.5  # pixels along each axis
    size: int = DIGIT
    # What moves: the points of the scaled picture, which the canvas reads through the inverse ("push"), or
    # the points that the canvas reads ("pull").
    direction: str = "push"
    steps: int = 8  # towards the inverse

    family: ClassVar[control_points.ThinPlateSpline] = control_points.ThinPlateSpline((4, 4))

    def __post_init__(self) -> None:
        one_of("direction", self.direction, ("pull", "push"))

    def draw(self, count: int, random: RandomNumbers, *, dtype: torch.dtype = torch.float32) -> Drawn:
        uniform = random.uniform(33, count).to(dtype)
        scale, away = between(*self.scale, uniform[0]), to_normal(uniform[1:], self.deviation)
        offsets = away.T.unflatten(1, (16, 2))  # pixels [N, 16, 2]
        return Drawn(offsets.flatten(1), {"scale": scale, "offsets": offsets})

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        return sampling.sample(images, self.grid(drawn))

    def grid(self, drawn: Drawn) -> Tensor:
        """Where in the digit each pixel of the canvas is read. [N, size, size, 2]"""
        zoom = drawn.numbers["scale"].reciprocal()[:, None, None]
        if self.direction == "push":
            return self.inverse_grid(zoom, drawn.numbers["offsets"])
        points = (
            control_lattice(zoom.dtype, zoom.device) * zoom * (self.size / DIGIT)
            + drawn.numbers["offsets"] / HALF
        )
        return self.family.grid(points.flatten(1), (self.size, self.size))

    def inverse_grid(self, zoom: Tensor, offsets: Tensor) -> Tensor:
        """The point q of the digit goes to s q + D(q), with D the spline through the offsets. So the pixel at
        y reads the q with q = (y - D(q)) / s, which a few steps from D = 0 come to wherever the picture is
        not folded. D is evaluated once, on a lattice beyond the digit's edge, and read off it at each step.
        """
        # One product in float64, out of reach of the switches that round float32 ones.
        weights = (offsets * zoom).transpose(1, 2).to(torch.float64, memory_format=torch.contiguous_format)
        bent = weights.flatten(0, 1) @ field_basis(offsets.device)
        bent = bent.to(offsets.dtype).reshape(-1, 2, FIELD, FIELD)
        start = canvas_lattice(self.size, offsets.dtype, offsets.device) * zoom[..., None]
        found = start
        for _ in range(self.steps):
            moved = sampling.sample(bent, found, padding="border", align_corners=True)
            found = start - moved.permute(0, 2, 3, 1)
        return found * FIELD_REACH


FIELD_REACH = 1.5  # how far from its centre D is known, in halves of a digit
FIELD = 43  # points along each axis, one a pixel: between them D is straight to within 0.01 px


@kept
def field_basis(device: torch.device) -> Tensor:
    """What a pixel of each offset adds to each point of the field, in FIELD_REACHes. float64 [16, points]"""
    points = coordinates.lattice((FIELD, FIELD), True, dtype=torch.float64) * FIELD_REACH
    basis = Elastic.family.basis_at(points.reshape(-1, 2)).T / (HALF * FIELD_REACH)
    return basis.contiguous().to(device)


@kept
def control_lattice(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The control points where nothing moves them. [16, 2]"""
    return Elastic.family.identity(dtype=dtype, device=device).unflatten(0, (16, 2))


@kept
def canvas_lattice(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The canvas's pixels in FIELD_REACHes. [size, size, 2]"""
    return coordinates.lattice((size, size), False, dtype=dtype, device=device) * (size / DIGIT / FIELD_REACH)


@dataclass(frozen=True)
class Added:
    """Two digits, one to a channel, "each digit is transformed independently" (A.1): [N, 2, 28, 28] to
    [N, 2, 42, 42]. The label is their sum, 0 to 18."""

    each: RotatedTranslatedScaled = field(default_factory=RotatedTranslatedScaled)

    family: ClassVar[Family] = families.Affine()

    def draw(self, count: int, random: RandomNumbers, *, dtype: torch.dtype = torch.float32) -> Drawn:
        """As for twice as many digits; every number has an axis of 2 after the batch's."""
        drawn = self.each.draw(2 * count, random, dtype=dtype)
        numbers = {name: number.unflatten(0, (count, 2)) for name, number in drawn.numbers.items()}
        return Drawn(drawn.theta.unflatten(0, (count, 2)), numbers)

    def apply(self, images: Tensor, drawn: Drawn) -> Tensor:
        count = len(images)
        apart = self.each.apply(
            images.reshape(2 * count, 1, DIGIT, DIGIT), Drawn(drawn.theta.flatten(0, 1), {})
        )
        return apart.reshape(count, 2, *apart.shape[2:])


# Transformations


def placed(angle: Tensor, scale: Tensor, centre: Tensor, size: int) -> Tensor:
    """The theta that shows a digit turned, scaled and centred at ``centre`` on its canvas. [N, 6]"""
    pull = size / DIGIT / scale
    cos, sin = pull * torch.cos(angle), pull * torch.sin(angle)
    back = -sin
    x, y = (centre / (size / 2)).unbind(1)
    right = torch.addcmul(sin * y, cos, x, value=-1)
    down = torch.addcmul(back * x, cos, y, value=-1)
    return torch.stack([cos, back, right, sin, cos, down], dim=1)


def square_to(corners: Tensor) -> Tensor:
    """The projective theta that takes the corners of [-1, 1] x [-1, 1] to four points. [N, 4, 2] -> [N, 8]

    The corners come as ``Family.box`` gives them, round. A projective map is w_i (p_i, 1) at corner i, and
    has no term in x y, so the alternating sum of these four vectors is zero: w_i is the area of the triangle
    of the three other points (the one across counted first). It is negative for a corner that is folded in.
    """
    after, across, before = (corners.roll(-turn, dims=1) for turn in (1, 2, 3))
    one, other = after - across, before - across
    weight = (other[..., 0] * one[..., 1] - other[..., 1] * one[..., 0])[..., None]  # [N, 4, 1]
    points = torch.cat([corners * weight, weight], dim=-1)  # [N, 4, 3]
    signs = corner_signs(corners)
    terms = torch.cat([signs, torch.ones_like(signs[:, :1])], dim=1)  # x, y, 1 at each corner [4, 3]
    # Summed one by one: a matrix product may be rounded to TF32.
    matrix = (points[..., :, None] * terms[:, None, :]).sum(1)  # [N, 3, 3]
    return (matrix / matrix[..., -1:, -1:]).flatten(1)[:, :-1]


def corner_signs(like: Tensor) -> Tensor:
    """The corners of [-1, 1] x [-1, 1], round. [4, 2]"""
    return _corner_signs(like.dtype, like.device)


@kept
def _corner_signs(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor([(-1, -1), (1, -1), (1, 1), (-1, 1)], dtype=dtype, device=device)


def between(low: float, high: float, uniform: Tensor) -> Tensor:
    return torch.add(low, uniform, alpha=high - low)  # one launch


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
