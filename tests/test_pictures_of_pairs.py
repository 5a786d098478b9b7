"""Pictures of two digits in two channels: grids, outputs and frames are those of each transformer."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from made_up import jobs_of, with_variant
from PIL import Image

import spatial_transformer as st
from spatial_transformer import cli
from spatial_transformer.coordinates import to_pixels
from spatial_transformer.experiments import animations, engine, pictures, probes, records, results
from spatial_transformer.experiments import pictures_of_pairs as pairs
from spatial_transformer.experiments.cases import chosen_cases, watched
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data.fixed_sets import fixed_set
from spatial_transformer.experiments.measures import channels
from spatial_transformer.experiments.tested_digits import given

EXPERIMENT = EXPERIMENTS["addition"]
CELLS = {cell.name: cell for cell in EXPERIMENT.cells}
NAME = "addition/2xST-FCN affine"
CHANGED = {"steps": 3, "batch": 8, "parameters": 300_000, "curve": 2}
OPTIONS = [*(f"{name}={value}" for name, value in CHANGED.items()), "--digits", "packaged"]


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """A folder of results, with two cells in it, and the record of the one with two transformers."""
    folder = tmp_path_factory.mktemp("results")
    jobs = jobs_of(EXPERIMENT, ("addition/FCN", NAME), CHANGED, folder)
    engine.train(jobs, digits, torch.device("cpu"))
    return folder, jobs[1].record


@pytest.fixture
def one(trained, digits):
    """As if it had learnt: each transformer undoes the distortion of a channel, the first the second's."""
    probe = probes.read(probes.path_of(trained[1]))
    truth = st.Affine().inverse(fixed_set("addition", digits).drawn.theta)  # [N, 2, 6]
    probe = probe._replace(theta=truth.flip(1).flatten(1).half().numpy())
    record = dataclasses.replace(records.read(trained[1]), status="done", reason=None)
    return pictures.Trained(results.Result(trained[1], record, CELLS[NAME]), probe)


def test_the_record_and_the_probe_of_a_pair(trained):
    record, probe = records.read(trained[1]), probes.read(probes.path_of(trained[1]))
    assert set(record.measures) == {"apart", "settled"}
    assert probe.theta.shape == (300, 12)
    assert probe.thetas.shape[2] == 12
    assert probe.predictions.max() <= 18
    plain = records.read(next((trained[0] / "addition").glob("addition-FCN*.json")))
    assert plain.measures == {}


def test_cases_show_both_channels_and_what_each_transformer_gives(one, digits):
    shown = pairs.seen(one, digits)
    assert channels(shown.attended) == {"apart": 100, "settled": 100}
    made = pairs.cases(one, shown, None)
    numbers, _ = chosen_cases(one, shown.labels, None)
    table = np.array(made.axes, dtype=object).reshape(6, 8)
    images = fixed_set("addition", digits).images
    for column, number in enumerate(numbers):
        for channel in (0, 1):
            axes = table[channel, column]
            assert np.array_equal(axes.images[0].get_array(), images[number, channel])
            assert len(axes.lines) == 2 * 6  # of both grids, three lines each way
            for transformer in (0, 1):
                theta = torch.from_numpy(one.probe.theta[number].astype(np.float32)).unflatten(0, (2, 6))
                corners = torch.tensor([[-1.0, -1], [1, -1]])
                expected = to_pixels(st.Affine().points(theta[transformer], corners), (42, 42))
                line = axes.lines[6 * transformer]
                np.testing.assert_allclose(line.get_xydata()[[0, -1]], expected, atol=1e-3)
                assert line.get_color() == pairs.COLOURS[transformer]
        for transformer in (0, 1):
            for channel in (0, 1):
                axes = table[2 + 2 * transformer + channel, column]
                framed = axes.spines["left"].get_visible()
                assert framed == (channel == 1 - transformer)  # the first attends to the second
        assert table[0, column].get_title() == str(int(shown.labels[number]))
    # What it attends to stands as the digit was before, but for the scale of 28 px to 28.
    found = torch.from_numpy(np.array(table[4, 0].images[0].get_array()))
    upright = digits.test.images[numbers[0]] / 255
    assert (found - upright).abs().mean() < 0.05
    assert (found - upright).abs().mean() < 0.5 * (found - upright.flip(0)).abs().mean()


def test_means_show_digits_where_a_transformer_attends_to_their_channel(one, digits):
    """The first undoes what was done to the second channel: there are digits, and blots in the other one."""
    shown = pairs.seen(one, digits)
    assert torch.equal(shown.digits.sum(1), shown.labels)
    table = np.array(pairs.means(one, shown).axes, dtype=object).reshape(6, 10)
    upright = digits.test.images / 255
    for label in range(10):
        expected = upright[digits.test.labels == label].mean(0)
        for row, (transformer, channel) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)], start=2):
            axes = table[row, label]
            away = float((torch.from_numpy(np.array(axes.images[0].get_array())) - expected).abs().mean())
            attends = channel == 1 - transformer
            assert axes.spines["left"].get_visible() == attends
            assert (away < 0.05) == attends, (label, row, away)
        assert not any(table[row, label].spines["left"].get_visible() for row in (0, 1))


def test_the_footer_says_how_often_the_channels_are_shared_out(one, digits):
    record = dataclasses.replace(one.result.record, measures={"apart": 98.36, "settled": 97.02})
    measured = one._replace(result=one.result._replace(record=record))
    said = pairs.footer(measured)
    assert "different channels in 98.4 % of all test images, the usual way round in 97.0 %" in said
    nothing = dataclasses.replace(record, measures={})
    assert pairs.footer(one._replace(result=one.result._replace(record=nothing))) == one.footer


def test_a_single_transformer_has_all_of_its_grid(digits, one):
    single = CELLS["addition/ST-FCN spline"]
    theta = st.ThinPlateSpline((4, 4)).identity().half().numpy()[None].repeat(300, 0)
    other = one._replace(result=one.result._replace(cell=single), probe=one.probe._replace(theta=theta))
    made = pairs.cases(other, pairs.seen(other, digits), None)
    assert len(made.axes) == 4 * 8
    assert len(made.axes[0].lines) == 10
    # It has nobody to share the channels with: none is its own.
    assert not any(axes.spines["left"].get_visible() for axes in made.axes)


def test_an_animation_shows_both_grids_and_what_each_transformer_gives(one, digits):
    """Of two moments: nothing done yet, and each distortion undone."""
    truth = one.probe.theta[:32]
    none = np.tile(st.Affine().identity().half().numpy(), (32, 2))
    learnt = one._replace(probe=one.probe._replace(steps=np.array([0, 9]), thetas=np.stack([none, truth])))
    shown = pairs.seen(learnt, digits)
    frames, durations = pairs.animation(learnt, shown)
    assert len(frames) == len(durations) == 2
    numbers = watched(shown.labels[:32].numpy(), one.probe.predictions)

    def tile_of(made, row, column):
        left, top = (
            edge + at * (animations.TILE + animations.GAP)
            for edge, at in ((animations.MARGIN, column), (animations.HEADER, row))
        )
        return np.asarray(made.crop((left, top, left + animations.TILE, top + animations.TILE)), int)

    for column, number in enumerate(numbers):
        for transformer in (0, 1):
            for channel in (0, 1):
                row = 2 + 2 * transformer + channel
                for made, theta in zip(frames, (none, truth), strict=True):
                    own = probes.transforms(theta[number : number + 1, 6 * transformer : 6 * transformer + 6])
                    expected = given(one.family, shown.before[number : number + 1], own, one.cell.data)
                    wanted = np.asarray(animations.tile(expected[0, channel]), int)
                    assert np.abs(tile_of(made, row, column) - wanted).max() <= 1
    # The first has its lines in red, the second in blue; at the start they lie on one another.
    start, end = (tile_of(made, 0, 0) for made in frames)
    red = [int((each[..., 0] - each[..., 2] > 100).sum()) for each in (start, end)]
    blue = [int((each[..., 2] - each[..., 0] > 100).sum()) for each in (start, end)]
    assert red[0] < 20 < red[1]
    assert min(blue) > 20


def test_a_probe_of_other_digits_is_named(one, digits):
    wrong = one._replace(probe=one.probe._replace(predictions=one.probe.predictions[:10]))
    with pytest.raises(probes.ProbeError, match="it has 10 predictions, not 300"):
        pairs.seen(wrong, digits)


def test_the_command(trained, tmp_path, capsys):
    arguments = ["draw", "addition", "--results", str(trained[0]), "--out", str(tmp_path), *OPTIONS]
    assert cli.main(arguments) == 0
    names = [path.removeprefix(f"{tmp_path}/addition/") for path in capsys.readouterr().out.split()]
    made = [f"addition-{name}.png" for name in ("curves", "2xST-FCN-affine-cases", "2xST-FCN-affine-means")]
    assert names == with_variant([*made, "addition-2xST-FCN-affine-training.gif"], CHANGED)
    with Image.open(tmp_path / "addition" / names[1]) as found:
        assert 800 <= found.width <= 1400
    assert cli.main([*arguments, "--only", "overview"]) == 2
    assert "there are cases, means, animation and curves of pairs of digits, no overview" in (
        capsys.readouterr().err
    )
