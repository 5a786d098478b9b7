"""Table 4: errors on the addition of two digits, in percent (section A.1).

=====================  =====
model                  RTS
=====================  =====
FCN                    47.7
CNN                    14.7
ST-FCN affine          22.6
ST-FCN projective      18.5
ST-FCN spline          19.1
2xST-FCN affine        9.0
2xST-FCN projective    5.9
2xST-FCN spline        5.8
=====================  =====

``stn train addition``
"""

from __future__ import annotations

from ..spec import Claim, Data, DigitSettings, Experiment, Model

FAMILIES = ("affine", "projective", "spline")

MODELS = (
    Model("FCN", "FCN", second=256),
    Model("CNN", "CNN"),
    *(Model(f"ST-FCN {family}", "FCN", family, second=256) for family in FAMILIES),
    *(Model(f"2xST-FCN {family}", "FCN", family, transformers=2, second=256) for family in FAMILIES),
)

ERRORS = (47.7, 14.7, 22.6, 18.5, 19.1, 9.0, 5.9, 5.8)

KIND = "addition"

EXPERIMENT = Experiment(
    name="addition",
    title="MNIST addition",
    models=MODELS,
    data=(Data(KIND, 42, 56, pooling=2, channels=2, classes=19),),
    paper={f"{KIND}/{model.name}": error for model, error in zip(MODELS, ERRORS, strict=True)},
    departures=(
        "Steps and batch are those of section A.4: A.1 says SGD and no more. The learning rate starts at "
        "0.02, twice that of A.4, and localisers learn at 0.25 of it.",
        "Momentum is 0.9, as in Table 1.",
        "Classification networks get pixels less MNIST's mean, over its deviation; localisers as they are.",
        "Weights start as PyTorch's layers do, and orthogonal in localisers; the text says they are random.",
        "Digits, distortions and who is added to whom are drawn afresh for every batch.",
        "The test set adds to each test digit another one, drawn once.",
        "A digit's centre is uniform where its scaled, unrotated 28 px frame fits, as in RTS.",
        "A transformer gives 56 px, pooled to 28, as for RTS.",
        "Two transformers side by side start at the same identity and differ by their localisers' weights.",
        "Networks have 670,000 parameters and not about 400,000 as in A.4, of which two localisers take "
        "231,000. Fully connected ones have 256 units in their second layer and in their first the FCN 176, "
        "an ST-FCN 301, a 2xST-FCN 128 (A.4: 128 to 256); the CNN has 111 filters (A.4: 32 to 64).",
    ),
    settings=DigitSettings(parameters=670_000, learning_rate=0.02, localiser_rate=0.25),
    claims=(
        Claim("The CNN is far more accurate than the FCN.", ((f"{KIND}/CNN", f"{KIND}/FCN"),)),
        Claim(
            "A single spatial transformer improves the FCN.",
            tuple((f"{KIND}/ST-FCN {family}", f"{KIND}/FCN") for family in FAMILIES),
        ),
        Claim(
            "Two spatial transformers err less than one.",
            tuple((f"{KIND}/2xST-FCN {family}", f"{KIND}/ST-FCN {family}") for family in FAMILIES),
        ),
        Claim(
            "Two spatial transformers before an FCN err less than the CNN.",
            tuple((f"{KIND}/2xST-FCN {family}", f"{KIND}/CNN") for family in FAMILIES),
        ),
    ),
    measures={
        "apart": "test images, in percent, in which the two transformers attend to different channels, "
        "each to that whose digit lies where it usually has one (50 by chance)",
        "settled": "those in which they do so the way round that is the more common. The paper: "
        '"the two spatial transformers co-adapt to focus on a single channel each"',
    },
)
