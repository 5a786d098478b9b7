"""Section A.3: digits in three dimensions, extruded, turned and moved in 60 x 60 x 60. The paper shows an
example and gives no number.

``stn train volumes``
"""

from __future__ import annotations

from ..spec import Claim, Data, DigitSettings, Experiment, Model

KIND = "3D"

EXPERIMENT = Experiment(
    name="volumes",
    title="Digits in 3D",
    models=(Model("CNN", "CNN"), Model("ST-CNN", "CNN", "affine")),
    data=(Data(KIND, 60, 60, dims=3),),
    paper={},
    departures=(
        "The CNN without a transformer, which the paper does not have, gets the volume summed along z.",
        "Steps, batch and learning rate are ours: 40,000 steps of 64 volumes in three stages from 0.01.",
        "Momentum is 0.9, as in the other experiments.",
        "The localiser learns at a tenth of the learning rate: at all of it the transformer looks away.",
        "A digit is 16 voxels deep, turned by up to 45 degrees about each axis, anywhere it fits.",
        "The localiser has three convolutions of 5 x 5 x 5 (8, 16 and 16 filters, stride 2) and 32 units.",
        "The CNN is that of section 4.1 on all 60 px of a projection; with the localiser's the parameters of "
        "each network are about 400,000, which leaves 80 filters without a transformer and 70 behind one.",
        "Classification networks get a projection less 0.455, over 1.89: its mean and deviation where "
        "nothing is transformed; localisers get voxels as they are.",
        "Weights start as PyTorch's layers do, and orthogonal in localisers.",
        "Volumes are drawn afresh for every batch.",
    ),
    settings=DigitSettings(steps=40_000, batch=64, localiser_rate=0.1),
    claims=(
        Claim(
            "(Not the paper's, which has no such network beside it:) a network that learns how to project a "
            "volume errs less than one that sums it up as it lies.",
            ((f"{KIND}/ST-CNN", f"{KIND}/CNN"),),
        ),
    ),
    gains=((f"{KIND}/CNN", f"{KIND}/ST-CNN"),),
    measures={
        "off centre": "pixels from the middle of the projection to the digit's centre, the median. The "
        'paper: it "learns to create a 2D projection of the 3D space where the digit is centered"',
        "off front": "degrees between the line of sight and the digit's depth, in the volume, the median; a "
        "digit that is seen from its front has 0",
    },
)
