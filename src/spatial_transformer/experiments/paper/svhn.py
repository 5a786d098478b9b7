"""Table 2: house numbers misread, in percent (sections 4.2 and A.5).

=============  =====  ======
model          64 px  128 px
=============  =====  ======
Maxout CNN     4.0           (Goodfellow et al. 2013)
CNN            4.0    5.6
DRAM           3.9    4.5    (Ba et al. 2014; averages of models and of samples)
ST-CNN Single  3.7    3.9
ST-CNN Multi   3.6    3.9
=============  =====  ======

All of these were trained on SVHN's 202,353 ``extra`` images besides.

Two tables: the paper's recipe on the 33,401 images of ``train`` (``stn train svhn``), and the best that
these give, by augmentation (``stn train svhn-augmented``). Settings of the second are to be chosen with
``held_out=5000``, which holds out the 5,000 images of ``svhn.validation_split``, and never on the test set.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..spec import Claim, Data, Experiment, Model, Settings, Task, cosine

# In so many parts dropout, some 16ths, comes in, all of them 256ths, as ``networks.dropped`` has it; and the
# learning rate.
RISES = 16

SCHEDULES = ("drops", "cosine")
MOVES = ("rotation", "scaling", "shift", "shear", "elastic")  # settings by which images are moved

# The most frequent number of the test set is 3 % of it.
TASK = Task("house numbers", "SVHN", stuck=95.0)


@dataclass(frozen=True)
class HouseNumberSettings(Settings):
    """How networks that read house numbers are trained.

    Steps: the paper's 400,000, another learning rate every 80,000, are 217 passes through its 235,754 images.
    40,000 and 8,000 would be 153 through 33,401; the last two of these five stages move nothing.
    """

    steps: int = 24_000
    batch: int = 128
    learning_rate: float = 0.04  # of the mean of five losses; 0.008 of their sum
    stages: int = 3
    schedule: str = "drops"  # from stage to stage, by ``drop``; "cosine": as that goes down, which wants many
    rate_rise: int = 0  # steps over which the learning rate comes in
    weight_decay: float = 0.0005
    localiser_rate: float = 0.1  # of the base learning rate
    localiser_start: int = 1000  # step from which on localisers learn
    dropout: float = 0.5
    dropout_rise: int = 3000  # steps over which dropout comes in; 0: all of it from the first step on
    extra: int = 0  # 1: trained on the extra images, too
    width: float = 1.0  # filters and units, of the paper's
    swapped: float = 0.0  # share of numbers of which about half of the digits are another number's
    parts: float = 0.0  # share of numbers of which the digits from one to another are seen, maybe all
    # Augmentation, uniform between so much either way: degrees; the logarithm of the scale of each axis; of
    # the side of the image, along each axis, that of the image, of its upper edge beside the lower, and of
    # each of 4 x 4 points of it on its own; the logarithms of the contrast, and of that of each colour.
    rotation: float = 0.0
    scaling: float = 0.0
    shift: float = 0.0
    shear: float = 0.0
    elastic: float = 0.0
    contrast: float = 0.0
    tint: float = 0.0
    inversion: float = 0.0  # share of images that turn to their negatives
    blend: float = 0.0  # of another image at most, in each image and in its loss; 0.5: mixup
    erased: float = 0.0  # side of a square that is blanked somewhere in each image, at most, of the image's
    views: int = 1  # that a test image is judged by: itself, and others of it that are moved as in training

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("weight_decay", "localiser_rate", *MOVES, "contrast", "tint"):
            if not 0 <= getattr(self, name) < 180:
                raise ValueError(f"{name} must be at least 0 and less than 180, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1 or self.dropout * 16 % 1:
            raise ValueError(f"dropout must be some 16ths, at least 0 and less than 1, got {self.dropout}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        for name in ("swapped", "parts", "inversion", "erased"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        for name in ("localiser_start", "dropout_rise", "rate_rise"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.blend <= 0.5:
            raise ValueError(f"blend must be from 0 to 0.5, got {self.blend}")
        if self.views < 1 or (self.views > 1 and not self.moves):
            raise ValueError(
                f"views must be 1, or more where images are moved ({', '.join(MOVES)}), got {self.views}"
            )
        if self.extra not in (0, 1):
            raise ValueError(f"extra must be 0 or 1, got {self.extra}")
        if not 0 < self.width <= 8:
            raise ValueError(f"width must be more than 0 and at most 8, got {self.width}")

    def rate(self, step: int) -> float:
        if self.schedule == "cosine":
            rate = self.learning_rate * cosine(self.stage(step), self.stages)
        else:
            rate = super().rate(step)
        if step >= self.rate_rise:
            return rate
        return rate * (step * RISES // self.rate_rise + 0.5) / RISES  # that of the middle of each part

    def turns(self) -> set[int]:
        own = {self.localiser_start}
        for rise in (self.dropout_rise, self.rate_rise):
            own |= {-(-part * rise // RISES) for part in range(1, RISES + 1)}
        return super().turns() | {step for step in own if 0 < step < self.steps}

    def dropped(self, step: int) -> float:
        """How much of the dropout there is at a step, from 0 to 1."""
        if step >= self.dropout_rise:
            return 1.0
        return step * RISES // self.dropout_rise / RISES

    @property
    def moves(self) -> bool:
        """Whether images are moved before a network sees them."""
        return any(getattr(self, name) for name in MOVES)


MODELS = (
    Model("CNN", "CNN"),
    Model("ST-CNN Single", "CNN", "affine"),
    Model("ST-CNN Multi", "CNN", "affine", transformers=4),
)
DATA = (Data("64px", 64, 64, channels=3, classes=11), Data("128px", 128, 128, channels=3, classes=11))
SIZES = tuple(data.kind for data in DATA)
TRANSFORMING = ("ST-CNN Single", "ST-CNN Multi")

# Rows are the models, columns the sizes.
ERRORS = ((4.0, 5.6), (3.7, 3.9), (3.6, 3.9))

QUOTED = {"Maxout CNN (Goodfellow et al. 2013)": (4.0, None), "DRAM (Ba et al. 2014), averaged": (3.9, 4.5)}

CLAIMS = (
    Claim(
        "A network with spatial transformers errs less than the CNN, at both sizes.",
        tuple((f"{size}/{model}", f"{size}/CNN") for size in SIZES for model in TRANSFORMING),
    ),
    Claim(
        "More background costs the CNN: it errs more at 128 px than at 64.",
        (("64px/CNN", "128px/CNN"),),
    ),
    Claim(
        "It costs spatial transformers hardly anything: at 128 px they err as at 64, within 0.3 points.",
        tuple((f"128px/{model}", f"64px/{model}") for model in TRANSFORMING),
        within=0.3,
    ),
    Claim(
        "Four transformers inside the network err no more than one before it, within 0.1 points.",
        tuple((f"{size}/ST-CNN Multi", f"{size}/ST-CNN Single") for size in SIZES),
        within=0.1,
    ),
)

MEASURES = {
    "looked at": "how much of the image's area the transformers together look at, in percent, the median; "
    "the crop of 64 px is 25 of that of 128",
    "follows": "how far the corners of what they look at are from where they are on average, in percent of "
    "the image's width, the root of the mean square over the first 1,000 test images; 0: it is the same in "
    "all of them",
}

DEPARTURES = (
    "Trained on the 33,401 numbers of train with up to five digits: the 202,353 extra ones, which the "
    "paper's networks saw besides, could not be had (who has them trains on them by extra=1).",
    "Momentum is 0.9; the text says SGD and no more.",
    "Dropout rises over the first 3,000 steps: with all of it random layers give next to nothing of an "
    "image, and networks learn nothing for thousands of steps (dropout_rise=0: as in the text).",
    "Localisers do not learn in the first 1,000 steps: while a network knows no more than how often each "
    "class is, blank images suit it best, and transformers look away (localiser_start=0: as in the text).",
    "Images are less their own mean, over a deviation of 32 of 255 levels; what the text leaves out is that "
    "of Goodfellow et al. 2013, whom it follows.",
    "Crops that leave the photograph repeat its border.",
    "The loss is the mean of the five places, those after the last digit counted with the null class, at a "
    "learning rate of 0.04; of their sum that is 0.008, and A.5 has 0.01. At 128 px ours are halved.",
    "Dropout is of what a layer gives, pooled and transformed; localisers see maps with nothing missing.",
    "Weights start normally, so that signals keep their strength, the five classifiers' as PyTorch has it; "
    "localisers orthogonal, the last of their layers a quarter as strong.",
    "Transformers give as much as they get, at 128 px too, and zeros where they look beyond it.",
    "Weights decay, biases too, but for those that transformers start at, the identity: without it they "
    "would look at a point.",
    "A batch is drawn from all images, each time anew: in a pass some are seen twice, and some not at all.",
    "On a GPU layers multiply bfloat16, and weights and their steps are float32 (precision=mixed).",
)

EXPERIMENT = Experiment(
    name="svhn",
    title="House numbers",
    models=MODELS,
    data=DATA,
    paper={
        f"{size}/{model.name}": error
        for model, row in zip(MODELS, ERRORS, strict=True)
        for size, error in zip(SIZES, row, strict=True)
    },
    departures=(
        "Stages of 8,000 steps and not 80,000, and the first three of five: with seven times fewer images "
        "92 passes through them and not 217. At a thousandth of the learning rate and less, that of the "
        "last two, training errors do not move; with all five, in runs at 64 px, seed 0, that are older than "
        "the table's, with transformers whose start decayed as other weights do, test errors were 8.89, 8.49 "
        "and 7.91 %, with three of them then 9.04, 8.59 and 7.94 (steps=40000 stages=5).",
        "At 128 px the learning rate is half that of 64 px, 0.02, and comes in over the first 1,000 steps: "
        "at 0.04 from the first step on ST-CNN Multi was at chance to the end (learning_rate=0.04 "
        "rate_rise=0).",
        *DEPARTURES,
    ),
    task=TASK,
    settings=HouseNumberSettings(),
    own_settings={"128px": HouseNumberSettings(learning_rate=0.02, rate_rise=1000)},
    claims=CLAIMS,
    measures=MEASURES,
    quoted=QUOTED,
)

AUGMENTED_SETTINGS = HouseNumberSettings(
    steps=40_000,
    stages=200,
    schedule="cosine",
    rate_rise=1000,
    dropout=0.25,
    rotation=10.0,
    scaling=0.15,
    shift=0.08,
    contrast=0.2,
    erased=0.4,
)

AUGMENTED = Experiment(
    name="svhn-augmented",
    title="House numbers, augmented",
    models=MODELS,
    data=DATA,
    paper={},
    departures=(
        "The paper has no such table: it does not augment. Here every image is turned by up to 10 degrees, "
        "each of its axes scaled by up to 15 %, it is moved by up to 8 % of its side, its contrast changed "
        "by up to 20 %, and a square of up to 40 % of its side blanked, anew in every batch; at 64 px what "
        "comes in at the borders is of the looser crop.",
        "40,000 steps, at a learning rate that goes down as a cosine in 200 stages and comes in over the "
        "first 1,000 steps, at 128 px from 0.02 on; dropout is 0.25. Squares and dropout were chosen at "
        "64 px on images held out, with one seed; the rest was not.",
        *DEPARTURES,
    ),
    task=TASK,
    settings=AUGMENTED_SETTINGS,
    own_settings={"128px": dataclasses.replace(AUGMENTED_SETTINGS, learning_rate=0.02)},
    claims=CLAIMS,
    measures=MEASURES,
)
