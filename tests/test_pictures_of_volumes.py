"""Pictures of digits in three dimensions: boxes where the transformer reads, and what it makes of volumes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from made_up import jobs_of, with_variant
from PIL import Image

import spatial_transformer as st
from spatial_transformer import cli
from spatial_transformer.experiments import animations, engine, pictures, probes, records, results
from spatial_transformer.experiments import pictures_of_volumes as volumes
from spatial_transformer.experiments.cases import chosen_cases
from spatial_transformer.experiments.catalogue import EXPERIMENTS
from spatial_transformer.experiments.data import fixed_sets

EXPERIMENT = EXPERIMENTS["volumes"]
CELLS = {cell.name: cell for cell in EXPERIMENT.cells}
CHANGED = {"steps": 2, "batch": 2, "parameters": 120_000, "curve": 2}
OPTIONS = [*(f"{name}={value}" for name, value in CHANGED.items()), "--digits", "packaged"]


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """A folder of results, and the record in it."""
    folder = tmp_path_factory.mktemp("results")
    (job,) = jobs_of(EXPERIMENT, ["3D/ST-CNN"], CHANGED, folder)
    engine.train([job], digits, torch.device("cpu"))
    return folder, job.record


def test_the_record_and_the_probe_of_a_volume(trained):
    record, probe = records.read(trained[1]), probes.read(probes.path_of(trained[1]))
    assert (record.paper, record.cell) == (None, "3D/ST-CNN")
    assert 0 < record.measures["off centre"] < 30
    assert probe.theta.shape == (300, 12)


def test_cases_show_volumes_boxes_and_projections(trained, digits):
    """Of the true transforms, which bring the digit to the middle and have it fill the volume."""
    probe = probes.read(probes.path_of(trained[1]))
    fixed = fixed_sets.fixed_set("3D", digits, count=20)
    back = st.Affine(3).inverse(fixed.drawn.theta)
    probe = probe._replace(theta=back.half().numpy())
    result = results.Result(trained[1], records.read(trained[1]), CELLS["3D/ST-CNN"])
    one = pictures.Trained(result, probe)
    shown = volumes.seen(one, digits)
    assert shown.before.shape == (20, 1, 60, 60, 60)
    made = volumes.cases(one, shown, None)
    numbers, _ = chosen_cases(one, shown.labels, None)
    table = np.array(made.axes, dtype=object).reshape(4, 8)
    for column, number in enumerate(numbers):
        front, above, _, projection = table[:, column]
        assert np.array_equal(front.images[0].get_array(), fixed.images[number, 0].sum(0))
        assert np.array_equal(above.images[0].get_array(), fixed.images[number, 0].sum(1))
        assert len(front.lines) == len(above.lines) == 12
        # The box is the digit's block: its middle is the digit's centre, x and y, and x and z.
        centre = fixed.drawn.numbers["centre"][number] + 29.5
        for axes, across_down in ((front, (0, 1)), (above, (0, 2))):
            corners = np.concatenate([line.get_xydata() for line in axes.lines])
            np.testing.assert_allclose(corners.mean(0), centre[list(across_down)], atol=0.1)
        # The digit upright, from 28 to 60 px.
        upright = torch.nn.functional.interpolate(
            digits.test.images[number][None, None] / 255, 60, mode="bilinear"
        )
        found = torch.from_numpy(np.array(projection.images[0].get_array()))
        assert (found / found.max() - upright[0, 0]).abs().mean() < 0.05


def test_means_and_the_footer(trained, digits):
    """Of transforms that do nothing but bring each digit to the middle."""
    probe = probes.read(probes.path_of(trained[1]))
    fixed = fixed_sets.fixed_set("3D", digits, count=20)
    centred = torch.cat([torch.eye(3).expand(20, 3, 3), fixed.drawn.numbers["centre"][..., None] / 30], dim=2)
    record = dataclasses.replace(records.read(trained[1]), measures={"off centre": 1.94, "off front": 35.7})
    result = results.Result(trained[1], record, CELLS["3D/ST-CNN"])
    one = pictures.Trained(result, probe._replace(theta=centred.flatten(1).half().numpy()))
    shown = volumes.seen(one, digits)
    before, after = np.array(volumes.means(one, shown).axes, dtype=object).reshape(2, 10)
    pixels = torch.arange(60) - 29.5
    for label in shown.labels.unique().tolist():
        ours = shown.labels == label
        expected = shown.before[ours, 0].sum(1).mean(0)
        np.testing.assert_allclose(before[label].images[0].get_array(), expected, atol=1e-4)
        out = torch.from_numpy(np.array(after[label].images[0].get_array()))
        middle = torch.stack([(out.sum(axis) * pixels).sum() / out.sum() for axis in (0, 1)])
        assert middle.norm() < 3  # what is left: a digit's ink is not in the middle of its frame
        assert before[label].get_title() == str(label)
    said = volumes.footer(one)
    assert (
        "the digit 1.9 px from the middle of its projection, and 36° between its depth and the line" in said
    )


def test_boxes_are_shown_whole():
    """However far they reach beyond the volume, unless it is very far."""
    theta = st.Affine(3).identity()
    for reach, half in ((0.5, 32), (1, 32), (2, 62), (2.5, 77), (9, 90)):
        boxes = [volumes.box(st.Affine(3), scale * theta, 60, "above") for scale in (0.3, reach)]
        assert volumes.around(boxes, 60) == pytest.approx(half, abs=1)


def test_a_deep_box_does_not_make_volumes_small_from_the_front(trained, digits):
    probe = probes.read(probes.path_of(trained[1]))
    deep = torch.tensor([1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0]).expand(8, 12).half().numpy()
    result = results.Result(trained[1], records.read(trained[1]), CELLS["3D/ST-CNN"])
    one = pictures.Trained(result, probe._replace(theta=deep))
    made = volumes.cases(one, volumes.seen(one, digits), None)
    table = np.array(made.axes, dtype=object).reshape(4, 8)
    shown = [table[row, 0].get_xlim() for row in (0, 1)]
    assert [right - left for left, right in shown] == pytest.approx([64, 124], abs=2)


def test_an_animation_shows_boxes_and_projections(trained, digits):
    """Of two moments: nothing done yet, and digits brought to the middle."""
    probe = probes.read(probes.path_of(trained[1]))
    centre = fixed_sets.fixed_set("3D", digits, count=20).drawn.numbers["centre"][..., None] / 30
    thetas = torch.stack(
        [
            torch.cat([torch.eye(3).expand(20, 3, 3), each], dim=2)
            for each in (torch.zeros_like(centre), centre)
        ]
    )
    probe = probe._replace(steps=np.array([0, 5]), thetas=thetas.flatten(2).half().numpy())
    result = results.Result(trained[1], records.read(trained[1]), CELLS["3D/ST-CNN"])
    one = pictures.Trained(result, probe)
    frames, durations = volumes.animation(one, volumes.seen(one, digits))
    assert len(frames) == len(durations) == 2
    pixels = torch.arange(animations.TILE) - (animations.TILE - 1) / 2
    away, moved = [], []
    for made in frames:
        page = torch.from_numpy(np.asarray(made, float))
        for column in range(8):
            left = animations.MARGIN + column * (animations.TILE + animations.GAP)
            above, below = (
                page[top : top + animations.TILE, left : left + animations.TILE]
                for top in (animations.HEADER, animations.HEADER + animations.TILE + animations.GAP)
            )
            ink = below[..., 0]
            away.append(
                float(torch.stack([(ink.sum(at) * pixels).sum() / ink.sum() for at in (0, 1)]).norm())
            )
            moved.append((above[..., 0] - above[..., 2] > 100).nonzero().double().mean(0))
    assert max(away[8:]) < 8 < max(away[:8])  # of 104: a digit's ink is not in the middle of its frame
    apart = torch.stack(moved[8:]) - torch.stack(moved[:8])
    assert apart.abs().max() > 5  # the boxes lie elsewhere, each about its digit
    assert apart.std(0).min() > 1


def test_edges_of_a_box():
    """Twelve, each along one axis."""
    identity = st.Affine(3).identity()
    for view in volumes.VIEWS:
        edges = volumes.box(st.Affine(3), identity, 60, view)
        assert edges.shape == (12, 2, 2)
        assert set(edges.flatten().tolist()) == {-0.5, 59.5}
        moved = (edges[:, 0] != edges[:, 1]).sum(1)
        assert sorted(moved.tolist()) == [0] * 4 + [1] * 8  # four run along the line of sight


def test_a_probe_of_other_digits_is_named(trained, digits):
    probe = probes.read(probes.path_of(trained[1]))
    result = results.Result(trained[1], records.read(trained[1]), CELLS["3D/ST-CNN"])
    probe = probe._replace(predictions=probe.predictions[:10])
    with pytest.raises(probes.ProbeError, match="it has 10 predictions, not 300"):
        volumes.seen(pictures.Trained(result, probe), digits)


def test_the_command(trained, tmp_path, capsys):
    arguments = ["draw", "volumes", "--results", str(trained[0]), "--out", str(tmp_path), *OPTIONS]
    assert cli.main(arguments) == 0
    names = [path.removeprefix(f"{tmp_path}/volumes/") for path in capsys.readouterr().out.split()]
    made = ["3D-curves.png", "3D-ST-CNN-cases.png", "3D-ST-CNN-means.png", "3D-ST-CNN-training.gif"]
    assert names == with_variant(made, CHANGED)
    with Image.open(tmp_path / "volumes" / names[1]) as found:
        assert 800 <= found.width <= 1400
    assert cli.main([*arguments, "--only", "overview"]) == 2
    assert "there are cases, means, animation and curves of volumes, no overview" in capsys.readouterr().err
