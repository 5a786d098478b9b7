"""Table 5: co-localised digits, in percent of 100 images of one class (section A.2).

=====  ===  ===
class  T    TC
=====  ===  ===
0      100  81
1      100  82
2      100  88
3      100  75
4      100  94
5      100  84
6      100  93
7      100  85
8      100  89
9      100  87
=====  ===  ===

T and TC are of 84 px here: ``T84`` and ``TC84``. A box is right where its overlap with the digit's 28 px
frame is more than a half. ``stn train colocalisation``
"""

from __future__ import annotations

from ..spec import Claim, Data, DigitSettings, Experiment, Model, Task

MODELS = tuple(Model(str(digit), "CNN", "attention", digit=digit) for digit in range(10))

DATA = (Data("T84", 84, 28), Data("TC84", 84, 28))

ACCURACIES = {
    "T84": (100, 100, 100, 100, 100, 100, 100, 100, 100, 100),
    "TC84": (81, 82, 88, 75, 94, 84, 93, 85, 89, 87),
}

EXPERIMENT = Experiment(
    name="colocalisation",
    title="Co-localisation",
    models=MODELS,
    data=DATA,
    paper={
        f"{kind}/{model.name}": 100.0 - accuracy
        for kind, row in ACCURACIES.items()
        for model, accuracy in zip(MODELS, row, strict=True)
    },
    departures=(
        "The localiser's two hidden layers have 128 units: with the 8 of the text it has 5.9 thousand "
        "parameters, with 128 the 100 thousand that the text says. Its pixels are standardised.",
        "The encoder is a CNN of 32 filters a layer, as section A.4 has them at least, trained for 1,200 "
        "steps on crops of digits among clutter, which lie up to 0.3 of their half width beside the digit "
        "and are 0.8 to 1.3 times as wide as its frame: it knows labels and places of those digits. The "
        "images that are localised are of others, of which neither is known.",
        "A third of its crops lie anywhere. Those whose centre is 0.6 of their half width or more from the "
        "digit's have a class of their own, the eleventh, and nearer ones are left out: without it crops may "
        "end on a part that all digits of a class have (the feet of 2s, in most runs).",
        "Each of the three layers of a descriptor is scaled to length 1: unscaled, the true boxes lose 90 "
        "to 200 with a margin of 1, and crops of nothing lose 1 at most.",
        "A pair of images moves the first one's crop alone, and of four random patches of an image the "
        "nearest counts.",
        "A crop is also drawn to the place of the best of these patches, as strongly as that one would lose "
        "less in its place: the gradient of the loss alone finds fewer of the digits among clutter.",
        "Crops are moved by up to 0.2 of their half width and scaled by up to 1.25 at random: otherwise all "
        "of them may have the digit in the same corner.",
        "Random patches have the size of the crop, and lie within the image, as crops do.",
        "The crop's scale starts midway and is kept between 0.27 and 0.5 (a digit has 1/3, the encoder saw "
        "0.27 to 0.42); it moves at 0.3 of the pace of the place.",
        "Adam in the place of SGD (momentum is its first decay), on all pairs of the 100 images a step.",
        "The true box is the digit's 28 px frame.",
    ),
    task=Task("colocalisation", "MNIST"),  # boxes that are wrong are no guesses
    settings=DigitSettings(
        steps=1000, batch=100, learning_rate=0.001, stages=2, parameters=54_251, curve=100
    ),
    claims=(
        Claim(
            "Without clutter digits are localised at least as often as among it.",
            tuple((f"T84/{model.name}", f"TC84/{model.name}") for model in MODELS),
            within=0.0,
        ),
    ),
    prints="accuracy",
)
