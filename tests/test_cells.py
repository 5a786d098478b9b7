"""What is trained: the cells of the tables, their settings, and their networks."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from spatial_transformer.experiments import networks
from spatial_transformer.experiments.data.fixed_sets import KINDS
from spatial_transformer.experiments.paper import cluttered_mnist, distorted_mnist
from spatial_transformer.experiments.spec import Settings

EXPERIMENTS = (distorted_mnist.EXPERIMENT, cluttered_mnist.EXPERIMENT)
CELLS = [cell for experiment in EXPERIMENTS for cell in experiment.cells]


def named(name, cells=CELLS):
    return next(cell for cell in cells if cell.name == name)


# The tables


def test_table_1():
    """Rows and columns as the paper prints them."""
    errors = {cell.name: cell.paper for cell in distorted_mnist.EXPERIMENT.cells}
    assert len(errors) == 32
    assert None not in errors.values()
    for name, error in {
        "R/FCN": 2.1, "RTS/FCN": 5.2, "P/CNN": 1.5, "E/CNN": 1.4, "RTS/ST-FCN projective": 0.9,
        "E/ST-FCN spline": 2.4, "R/ST-CNN affine": 0.7, "P/ST-CNN projective": 0.8, "E/ST-CNN spline": 1.1,
    }.items():  # fmt: skip
        assert errors[name] == error, name


def test_the_cluttered_cells():
    found = {cell.name: cell.paper for cell in cluttered_mnist.EXPERIMENT.cells}
    assert found == {"TC/FCN": 13.2, "TC/CNN": 3.5, "TC/ST-FCN": 2.0, "TC/ST-CNN": 1.7}


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_an_experiment_names_its_departures_and_known_data(experiment):
    assert all(sentence.endswith(".") for sentence in experiment.departures)
    assert any("omentum" in sentence for sentence in experiment.departures)
    assert {data.kind for data in experiment.data} <= set(KINDS)
    assert dataclasses.replace(experiment.settings, parameters=400_000) == Settings()


def test_the_fcn_of_the_cluttered_set_has_the_least_units_that_the_text_names():
    assert networks.build(named("TC/FCN")).classifier[1].out_features == 128


# Settings


def test_the_papers_schedule():
    settings = Settings()
    assert (settings.steps, settings.batch) == (150_000, 256)
    rates = [settings.rate(step) for step in (0, 49_999, 50_000, 99_999, 100_000, 149_999)]
    assert rates == pytest.approx([0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])
    assert Settings(steps=10, stages=1).rate(9) == 0.01


def test_settings_as_text():
    changed = Settings().changed({"steps": "3000", "learning_rate": "2e-2"})
    assert (changed.steps, changed.learning_rate) == (3000, 0.02)
    assert dataclasses.replace(changed, steps=150_000, learning_rate=0.01) == Settings()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lerning_rate": "1"}, "there is no setting 'lerning_rate'; did you mean learning_rate?"),
        ({"quux": "1"}, "there is no setting 'quux'; known are steps, batch,"),
        ({"steps": "many"}, "steps must be a whole number, got 'many'"),
        ({"steps": "1.5"}, "steps must be a whole number, got '1.5'"),
        ({"drop": "x"}, "drop must be a number, got 'x'"),
        ({"steps": "0"}, "steps must be at least 1, got 0"),
        ({"learning_rate": "nan"}, "learning_rate must be a number more than 0, got nan"),
        ({"momentum": "1"}, "momentum must be at least 0 and less than 1, got 1.0"),
        ({"held_out": "-1"}, "held_out must be at least 0, got -1"),
    ],
)
def test_settings_that_cannot_be(given, message):
    with pytest.raises(ValueError, match=r"^there|must") as raised:
        Settings().changed(given)
    assert message in str(raised.value)


# Networks


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_networks_of_a_table_have_as_many_parameters(cell):
    """Within half a step of the width: one more unit or filter would be further away."""
    network = networks.build(cell)
    count = networks.parameters(network)
    asked = 480_000 if cell.data.kind == "TC" else 400_000
    assert abs(count - asked) < 6000 if cell.model.classifier == "CNN" else abs(count - asked) < 2500
    assert network(torch.rand(2, 1, cell.data.size, cell.data.size)).shape == (2, 10)


def test_a_classification_network_has_three_layers_of_weights():
    for name in ("R/FCN", "R/CNN"):
        layers = [m for m in networks.build(named(name)).classifier if isinstance(m, (nn.Linear, nn.Conv2d))]
        assert len(layers) == 3
    convolutions = [m for m in networks.build(named("R/CNN")).classifier if isinstance(m, nn.Conv2d)]
    assert [m.kernel_size for m in convolutions] == [(9, 9), (7, 7)]
    pools = [m for m in networks.build(named("R/CNN")).classifier if isinstance(m, nn.MaxPool2d)]
    assert len(pools) == 2


@pytest.mark.parametrize(("name", "hidden"), [("R/ST-FCN affine", 3), ("R/ST-CNN affine", 3)])
def test_a_localiser_has_three_hidden_layers(name, hidden):
    localiser = networks.build(named(name)).transformer.localiser
    assert len([m for m in localiser.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]) == hidden


@pytest.mark.parametrize("name", ["R/ST-FCN affine", "E/ST-CNN spline", "P/ST-CNN projective"])
def test_a_network_starts_with_the_identity(name):
    digits = torch.rand(3, 1, 28, 28)
    assert torch.equal(networks.build(named(name)).seen(digits), digits)


@pytest.mark.parametrize("name", ["RTS/ST-FCN affine", "RTS/ST-CNN affine"])
def test_a_localiser_passes_on_as_much_as_it_gets(name):
    """PyTorch's own start leaves a thirtieth of it after three layers."""
    localiser = networks.build(named(name)).transformer.localiser
    for layer in localiser.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            rows = layer.weight.detach().flatten(1)
            assert torch.allclose(rows @ rows.T, 2 * torch.eye(len(rows)), atol=1e-5)
            assert not layer.bias.any()


def test_a_classification_network_gets_pixels_of_mean_0_and_deviation_1():
    network = networks.build(named("R/ST-FCN affine"))
    seen = []
    network.classifier.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    images = torch.tensor([0.1307, 0.1307 + 0.3081]).view(2, 1, 1, 1).expand(2, 1, 28, 28)
    network(images)
    assert torch.allclose(seen[0], torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand_as(images), atol=1e-6)


@pytest.mark.parametrize(("name", "size"), [("RTS/ST-CNN affine", 42), ("TC/ST-FCN", 60)])
def test_what_a_transformer_gives_is_halved(name, size):
    network = networks.build(named(name))
    assert network.transformer(torch.rand(2, 1, size, size)).shape == (2, 1, 56, 56)
    assert network.seen(torch.rand(2, 1, size, size)).shape == (2, 1, 28, 28)


def test_too_few_parameters_are_named():
    cell = named("R/ST-CNN affine")
    cell = dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, parameters=1000))
    with pytest.raises(ValueError, match=r"R/ST-CNN affine: parameters must be at least [\d,]+, got 1,000"):
        networks.build(cell)


def test_images_too_small_for_the_cnn_are_named():
    with pytest.raises(ValueError, match="images of 23 px are too small for the CNN: 24 px are"):
        networks.convolutional(23, 4)
    assert networks.convolutional(24, 4)(torch.rand(1, 1, 24, 24)).shape == (1, 10)
