"""What is trained: the cells of the tables, their settings, and their networks."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from torch import nn

from spatial_transformer.experiments import networks
from spatial_transformer.experiments.data import uci_digits
from spatial_transformer.experiments.data.fixed_sets import KINDS, fixed_set
from spatial_transformer.experiments.paper import addition, birds, cluttered_mnist, distorted_mnist, volumes
from spatial_transformer.experiments.spec import DigitSettings

EXPERIMENTS = (
    distorted_mnist.EXPERIMENT,
    cluttered_mnist.EXPERIMENT,
    addition.EXPERIMENT,
    volumes.EXPERIMENT,
)
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


def test_table_4():
    found = {cell.name.removeprefix("addition/"): cell.paper for cell in addition.EXPERIMENT.cells}
    assert found == {
        "FCN": 47.7, "CNN": 14.7, "ST-FCN affine": 22.6, "ST-FCN projective": 18.5, "ST-FCN spline": 19.1,
        "2xST-FCN affine": 9.0, "2xST-FCN projective": 5.9, "2xST-FCN spline": 5.8,
    }  # fmt: skip


def test_table_3():
    """As errors; the paper prints accuracies. What it has no number of is a control."""
    found = {cell.name: cell.paper for cell in birds.EXPERIMENT.cells}
    assert found == {
        "224px/CNN": 17.7, "224px/2xST-CNN": 16.9,
        "448px/CNN": None, "448px/2xST-CNN": 16.1, "448px/4xST-CNN": 15.9,
        "448px/2xST-CNN attention": None, "448px/2xST-CNN affine": None,
    }  # fmt: skip
    assert birds.EXPERIMENT.prints == "accuracy"
    assert {name for claim in birds.EXPERIMENT.claims for pair in claim.pairs for name in pair} <= set(found)
    assert all(sentence.endswith(".") for sentence in birds.EXPERIMENT.departures)


def test_the_paper_has_no_number_for_volumes():
    assert {cell.name: cell.paper for cell in volumes.EXPERIMENT.cells} == {"3D/CNN": None, "3D/ST-CNN": None}


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_an_experiment_names_its_departures_and_known_data(experiment):
    assert all(sentence.endswith(".") for sentence in experiment.departures)
    assert any("omentum" in sentence for sentence in experiment.departures)
    assert {data.kind for data in experiment.data} <= set(KINDS)
    if experiment is not volumes.EXPERIMENT:  # the text says nothing of how it is trained
        usual = vars(DigitSettings())
        for own in (experiment.settings, *experiment.own_settings.values()):
            said = {
                "parameters": f"Networks have {own.parameters:,} parameters",
                "learning_rate": f"learning rate (starts at|of) {own.learning_rate:g}",
                "localiser_rate": f"ocalisers learn at {own.localiser_rate:g} of",
            }
            for name in (name for name, value in vars(own).items() if value != usual[name]):
                assert any(re.search(said[name], sentence) for sentence in experiment.departures), name


# Networks


@pytest.mark.parametrize("side", [2, 3])
def test_average_pooling_is_pytorchs_to_the_last_bit(side):
    image = torch.randn(2, 3, 4 * side, 5 * side, requires_grad=True)
    ours, wanted = networks.AveragePool(side)(image), torch.nn.AvgPool2d(side)(image)
    assert torch.equal(ours, wanted)
    cotangent = torch.randn_like(ours)
    gradients = [torch.autograd.grad(pooled, image, cotangent)[0] for pooled in (ours, wanted)]
    assert torch.equal(*gradients)
    assert gradients[0].is_contiguous()
    with pytest.raises(ValueError, match=r"images of \[8, 9\] px cannot be cut into squares of 4 px"):
        networks.AveragePool(4)(torch.zeros(1, 1, 8, 9))


# Settings


def test_the_papers_schedule():
    settings = DigitSettings()
    assert (settings.steps, settings.batch) == (150_000, 256)
    rates = [settings.rate(step) for step in (0, 49_999, 50_000, 99_999, 100_000, 149_999)]
    assert rates == pytest.approx([0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])
    assert DigitSettings(steps=10, stages=1).rate(9) == 0.01


def test_a_drop_that_leaves_nothing():
    settings = DigitSettings(drop=1e200)
    assert [settings.rate(step) for step in (0, 100_000)] == [0.01, 0.0]


def test_settings_as_text():
    changed = DigitSettings().changed({"steps": "3000", "learning_rate": "2e-2"})
    assert (changed.steps, changed.learning_rate) == (3000, 0.02)
    assert dataclasses.replace(changed, steps=150_000, learning_rate=0.01) == DigitSettings()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lerning_rate": "1"}, "there is no setting 'lerning_rate'; did you mean learning_rate?"),
        ({"quux": "1"}, "there is no setting 'quux'; known are steps, batch,"),
        ({"steps": "many"}, "steps must be a whole number, got 'many'"),
        ({"steps": "1.5"}, "steps must be a whole number, got '1.5'"),
        ({"drop": "x"}, "drop must be a number, got 'x'"),
        ({"steps": "0"}, "steps must be at least 1, got 0"),
        ({"learning_rate": "nan"}, "learning_rate must be a number more than 0, 1e+30 at most, got nan"),
        ({"momentum": "1"}, "momentum must be at least 0 and less than 1, got 1.0"),
        ({"held_out": "-1"}, "held_out must be at least 0, got -1"),
    ],
)
def test_settings_that_cannot_be(given, message):
    with pytest.raises(ValueError, match=r"^there|must") as raised:
        DigitSettings().changed(given)
    assert message in str(raised.value)


# Networks


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_networks_of_a_table_have_as_many_parameters(cell):
    """Within half a step of the width: one more unit or filter would be further away."""
    network = networks.build(cell)
    count = networks.parameters(network)
    asked = {"TC": 500_000, "addition": 670_000}.get(cell.data.kind, 400_000)
    assert abs(count - asked) < 6000 if cell.model.classifier == "CNN" else abs(count - asked) < 2500
    images = torch.rand(2, cell.data.channels, *[cell.data.size] * cell.data.dims)
    assert network(images).shape == (2, 19 if cell.data.kind == "addition" else 10)


def test_a_classification_network_has_three_layers_of_weights():
    for name in ("R/FCN", "R/CNN"):
        layers = [m for m in networks.build(named(name)).classifier if isinstance(m, (nn.Linear, nn.Conv2d))]
        assert len(layers) == 3
    convolutions = [m for m in networks.build(named("R/CNN")).classifier if isinstance(m, nn.Conv2d)]
    assert [m.kernel_size for m in convolutions] == [(9, 9), (7, 7)]
    pools = [m for m in networks.build(named("R/CNN")).classifier if isinstance(m, nn.MaxPool2d)]
    assert len(pools) == 2


@pytest.mark.parametrize(("name", "rectifiers"), [("R/FCN", 2), ("R/CNN", 2), ("R/ST-FCN spline", 2)])
def test_a_classification_network_has_two_rectifiers(name, rectifiers):
    """One behind each hidden layer."""
    classifier = networks.build(named(name)).classifier
    assert sum(isinstance(layer, nn.ReLU) for layer in classifier.modules()) == rectifiers


def test_settings_of_a_model_that_is_not_there():
    with pytest.raises(ValueError, match="distorted-mnist has no cell, model or data FNC, whose own"):
        dataclasses.replace(distorted_mnist.EXPERIMENT, own_settings={"FNC": DigitSettings()})


def test_settings_of_a_row_of_a_column_and_of_a_cell():
    row, column, one = (DigitSettings(steps=steps) for steps in (1, 2, 3))
    own = {"FCN": row, "RTS": column, "RTS/FCN": one, "R/CNN": one}
    experiment = dataclasses.replace(distorted_mnist.EXPERIMENT, own_settings=own)
    for cell in experiment.cells:
        expected = experiment.settings if cell.data.kind != "RTS" else column
        expected = row if cell.model.name == "FCN" else expected
        assert cell.settings is (one if cell.name in own else expected), cell.name


def test_the_gain_of_a_cell_that_is_not_there():
    with pytest.raises(ValueError, match="distorted-mnist has no cell R/CCN, whose gain is asked for"):
        dataclasses.replace(distorted_mnist.EXPERIMENT, gains=(("R/FCN", "R/CCN"),))


def test_hidden_layers_are_as_wide_as_one_another_or_as_the_text_says():
    """ "128 to 256 units": what the FCN's first layer costs on 60 x 60 pixels leaves both to one network."""
    for name, second in (("R/FCN", None), ("TC/ST-FCN", None), ("TC/FCN", 256)):
        first, *_, last = [m for m in networks.build(named(name)).classifier if isinstance(m, nn.Linear)]
        assert last.in_features == (second or first.out_features)
    assert 128 <= networks.build(named("TC/FCN")).classifier[1].out_features <= 256


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


# Two digits


def test_transformers_side_by_side_each_warp_both_channels():
    network = networks.build(named("addition/2xST-FCN affine"))
    images = torch.rand(3, 2, 42, 42)
    first, second = network.transformer.each
    with torch.no_grad():
        second.head.bias += torch.tensor([0.0, 0, 0.3, 0, 0, 0])  # it looks further to the right
        seen = network.seen(images)
        assert seen.shape == (3, 4, 28, 28)
        assert torch.equal(seen[:, :2], network.pool(first(images)))
        assert torch.equal(seen[:, 2:], network.pool(second(images)))
        tested, _ = network.transformer(images, return_theta=True)  # as a test has it
        assert torch.equal(network.pool(tested), seen)
    assert not torch.equal(seen[:, :2], seen[:, 2:])
    theta = network.theta(images)
    assert theta.shape == (3, 12)
    assert theta[0].tolist() == pytest.approx([1, 0, 0, 0, 1, 0, 1, 0, 0.3, 0, 1, 0])


@pytest.mark.parametrize("family", ["affine", "projective", "spline"])
def test_transformers_side_by_side_start_alike_and_part(family):
    """Both at the identity; then the gradients of their last layers differ, by their localisers' features."""
    network = networks.build(named(f"addition/2xST-FCN {family}"))
    images = torch.rand(4, 2, 42, 42)
    seen = network.seen(images)
    assert torch.equal(seen[:, :2], seen[:, 2:])
    plain = networks.transformer(named("addition/ST-FCN affine").model, named("addition/FCN").data)
    torch.testing.assert_close(seen[:, :2], network.pool(plain(images)), rtol=0, atol=1e-5)
    torch.nn.functional.cross_entropy(network(images), torch.tensor([0, 5, 9, 18])).backward()
    first, second = (each.head.weight.grad for each in network.transformer.each)
    assert first.abs().max() > 0
    assert (first - second).abs().max() > 0.1 * first.abs().max()


# Volumes


def test_a_volume_is_projected_along_its_depth():
    volumes_of = torch.rand(2, 1, 60, 60, 60)
    for name in ("3D/CNN", "3D/ST-CNN"):
        seen = networks.build(named(name)).seen(volumes_of)
        torch.testing.assert_close(seen, volumes_of.sum(2), rtol=1e-5, atol=1e-4)  # the identity, at first
    network = networks.build(named("3D/ST-CNN"))
    with torch.no_grad():
        network.transformer.head.bias[11] = 0.5  # a quarter of the volume further in
    theirs = volumes_of[:, :, 15:].sum(2)
    torch.testing.assert_close(network.seen(volumes_of), theirs, rtol=1e-5, atol=1e-3)


def test_projections_get_mean_0_and_deviation_1():
    """Of the packaged digits, which have more ink than MNIST's: within a third."""
    network = networks.build(named("3D/CNN"))
    fixed = fixed_set("3D", uci_digits.load(), count=100)
    given = (network.seen(fixed.images) - network.mean) / network.deviation
    assert abs(given.mean()) < 0.34
    assert 0.75 < given.std() < 1.34


def test_the_localiser_of_volumes():
    localiser = networks.build(named("3D/ST-CNN")).transformer.localiser
    convolutions = [m for m in localiser.modules() if isinstance(m, nn.Conv3d)]
    assert [m.kernel_size for m in convolutions] == [(5, 5, 5)] * 3
    assert [m.stride for m in convolutions] == [(2, 2, 2)] * 3
    assert localiser.out_features == 32
    rows = convolutions[1].weight.detach().flatten(1)
    assert torch.allclose(rows @ rows.T, 2 * torch.eye(len(rows)), atol=1e-5)
