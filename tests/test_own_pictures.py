"""Pictures from cameras and programs, as networks take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")

from spatial_transformer.experiments import own_pictures  # noqa: E402
from spatial_transformer.experiments.own_pictures import in_colour  # noqa: E402


def ramp(width=32, height=16):
    """Red tells x and green y."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8)


def test_as_it_is(tmp_path):
    Image.fromarray(ramp()).save(tmp_path / "ramp.png")
    assert np.array_equal(np.asarray(in_colour(tmp_path / "ramp.png")), ramp())


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_upright_as_the_camera_was_held(orientation, turns, tmp_path):
    about = Image.Exif()
    about[0x0112] = orientation
    Image.fromarray(ramp()).save(tmp_path / "held.png", exif=about)
    found = np.asarray(in_colour(tmp_path / "held.png"))
    assert np.array_equal(found, np.rot90(ramp(), turns))


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "YCbCr"])
def test_other_colours(mode, tmp_path):
    """As Pillow has them: all three channels, and no more."""
    path = tmp_path / ("made.tif" if mode in ("CMYK", "YCbCr") else "made.png")
    made = Image.fromarray(ramp()).convert(mode)
    made.save(path)
    found = np.asarray(in_colour(path))
    assert np.array_equal(found, np.asarray(made.convert("RGB")))
    assert np.ptp(found[..., 0]) > 200


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_pictures_of_more_than_eight_bits(mode, tmp_path):
    """From the darkest to the brightest level that there is; Pillow alone makes them white, or black."""
    levels = np.linspace(0, {"I;16": 4000, "I": 70_000, "F": 1}[mode], 48).reshape(6, 8)
    kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    Image.fromarray(levels.astype(kind)).save(tmp_path / "levels.tif")
    found = np.asarray(in_colour(tmp_path / "levels.tif"))
    assert found.shape == (6, 8, 3)
    np.testing.assert_allclose(found[..., 0], np.linspace(0, 255, 48).reshape(6, 8), atol=0.7)
    assert (found[..., :1] == found).all()


def test_what_is_not_a_number_is_no_picture(tmp_path):
    Image.fromarray(np.full((4, 4), np.nan, np.float32)).save(tmp_path / "nothing.tif")
    with pytest.raises(
        ValueError, match=r"nothing\.tif cannot be read as a picture: it has pixels that are no"
    ):
        in_colour(tmp_path / "nothing.tif")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_grey(mode, tmp_path):
    """Whatever colour lies under them."""
    if mode == "P":
        clear = Image.new("P", (4, 4), 1)
        clear.putpalette([0, 0, 0, 250, 0, 0])
        clear.paste(0, (0, 0, 2, 4))
        clear.info["transparency"] = 1
    else:
        clear = Image.new("RGBA", (4, 4), (250, 0, 0, 0))
        clear.paste((0, 0, 0, 255), (0, 0, 2, 4))
    (clear if mode == "P" else clear.convert(mode)).save(tmp_path / "clear.png")
    found = in_colour(tmp_path / "clear.png")
    assert (found.getpixel((0, 0)), found.getpixel((3, 3))) == ((0, 0, 0), (128, 128, 128))


def test_what_cannot_be_read_is_named(tmp_path):
    for name, held in (("text.png", b"no picture"), ("cut.png", None)):
        path = tmp_path / name
        if held is None:
            Image.fromarray(ramp()).save(path)
            held = path.read_bytes()[:60]
        path.write_bytes(held)
        with pytest.raises(ValueError, match=rf"{name} cannot be read as a picture: "):
            in_colour(path)


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_levels_are_spread_from_the_darkest(mode, tmp_path):
    levels = {"I;16": 1000, "I": -70_000, "F": -1.0}[mode] + np.linspace(0, 4000, 48).reshape(6, 8)
    kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    Image.fromarray(levels.astype(kind)).save(tmp_path / "levels.tif")
    found = np.asarray(in_colour(tmp_path / "levels.tif"))
    np.testing.assert_allclose(found[..., 0], np.linspace(0, 255, 48).reshape(6, 8), atol=0.7)


def test_what_is_half_transparent_is_mixed_with_grey(tmp_path):
    Image.new("RGBA", (4, 4), (250, 0, 0, 51)).save(tmp_path / "haze.png")
    assert in_colour(tmp_path / "haze.png").getpixel((0, 0)) == pytest.approx((152, 102, 102), abs=1)


def test_a_picture_of_absurd_size_is_named(tmp_path, monkeypatch):
    Image.new("RGB", (32, 16)).save(tmp_path / "huge.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=r"huge\.png cannot be read as a picture: .*exceeds limit"):
        in_colour(tmp_path / "huge.png")


def test_a_picture_broken_on_the_way_is_named(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "broken.png")
    content = bytearray((tmp_path / "broken.png").read_bytes())
    second = content.index(b"IDAT", content.index(b"IDAT") + 4)
    content[second : second + 4] = b"\xff" * 4
    (tmp_path / "broken.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.png cannot be read"):
        in_colour(tmp_path / "broken.png")


@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError, MemoryError])
def test_whatever_a_decoder_raises_names_the_picture(error, monkeypatch):
    """A RuntimeError would be taken for one of the network, and the other pictures be left unanswered."""

    def fails(path):
        raise error("Failed to decode frame 0")

    monkeypatch.setattr(own_pictures, "converted", fails)
    with pytest.raises(ValueError, match=r"cut\.avif cannot be read as a picture: Failed to decode frame 0"):
        in_colour(Path("cut.avif"))


def test_no_level_but_one(tmp_path):
    """Of which nothing can be spread."""
    Image.fromarray(np.full((4, 4), 700, np.uint16)).save(tmp_path / "even.tif")
    assert not np.asarray(in_colour(tmp_path / "even.tif")).any()
