from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ooodist.config.data import ImagesConfig
from ooodist.errors import UserError
from tests.data.laws import assert_laws, batches, joined, load_one

COLORS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}
SUFFIXES = ("png", "jpg", "bmp", "gif")


def make(root: Path, per_class: int = 4) -> str:
    """A folder per color with images of that color in all formats and several sizes."""
    for name, color in COLORS.items():
        (root / name / "deeper").mkdir(parents=True)
        for number in range(per_class):
            folder = root / name / ("deeper" if number % 2 else "")
            image = Image.new("RGB", (10 + number, 20), color)
            image.save(folder / f"{number}.{SUFFIXES[number % 4]}")
    return str(root)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return make(tmp_path / "train")


def test_laws(root: str) -> None:
    assert_laws(ImagesConfig(root, image_size=6, validation_fraction=0.3), batch=2)


def test_every_format_is_decoded_and_belongs_to_its_folder(root: str) -> None:
    data = load_one(ImagesConfig(root, image_size=6, validation_fraction=0), batch=12)
    (x, y), *_ = batches(data.train, 1)
    assert x.shape == (12, 6, 6, 3)
    assert (data.task, data.num_classes) == ("classification", 3)
    assert np.bincount(y).tolist() == [4, 4, 4]
    for image, label in zip(x, y, strict=True):
        expected = np.array(list(COLORS.values())[label]) / 255
        assert np.abs(image - expected).max() < 0.02


def test_grey(root: str) -> None:
    data = load_one(ImagesConfig(root, image_size=6, channels=1, validation_fraction=0), batch=12)
    (x, y), *_ = batches(data.train, 1)
    assert x.shape == (12, 6, 6, 1)
    assert np.allclose(x[y == 1], 0.587, atol=0.02)


def test_a_validation_folder_keeps_the_classes_numbers(root: str, tmp_path: Path) -> None:
    held_out = tmp_path / "validation" / "red"
    held_out.mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (5, 5), COLORS["red"]).save(held_out / f"{number}.png")
    config = ImagesConfig(root, image_size=6, validation_path=str(held_out.parent))
    data = load_one(config)
    assert (data.num_samples, data.num_validation_samples) == (12, 3)
    assert joined(batches(data.validation))[1].tolist() == [2, 2, 2]
    assert_laws(config, batch=2)
    (tmp_path / "validation" / "pink").mkdir()
    with pytest.raises(UserError, match="does not have: pink"):
        load_one(config)


def test_what_is_ignored_is_logged(root: str, caplog: pytest.LogCaptureFixture) -> None:
    Path(root, "red", "notes.txt").write_text("no image")
    Path(root, ".hidden").mkdir()
    Path(root, "white").mkdir()
    data = load_one(ImagesConfig(root, image_size=6))
    assert data.num_classes == 4
    assert "ignored 1 file of other kinds, such as" in caplog.text
    assert f"class folder {Path(root, 'white')} has no images" in caplog.text


def test_folders_without_images(tmp_path: Path) -> None:
    config = ImagesConfig(str(tmp_path / "set"))
    with pytest.raises(UserError, match="set is not a folder"):
        load_one(config)
    Path(config.path).mkdir()
    with pytest.raises(UserError, match="set has no folders in it"):
        load_one(config)
    Path(config.path, "one").mkdir()
    with pytest.raises(UserError, match="has one class folder, one"):
        load_one(config)
    Path(config.path, "two").mkdir()
    with pytest.raises(UserError, match="set has no images in its class folders"):
        load_one(config)


def photo(path: Path) -> Path:
    """A file large enough that a cut one still has its header."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(path)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.95])
def test_a_truncated_file_is_named(root: str, suffix: str, kept: float) -> None:
    path = photo(Path(root, "red", f"cut.{suffix}"))
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(UserError, match=rf"cut.{suffix} cannot be read as an image"):
        load_one(ImagesConfig(root))


def test_what_only_looks_like_an_image_is_named(root: str) -> None:
    path = Path(root, "red", "page.png")
    path.write_text("<html>not found</html>")
    with pytest.raises(UserError, match=r"page.png cannot be read as an image"):
        load_one(ImagesConfig(root))
    Image.new("RGB", (5, 5)).save(path, "TIFF")
    with pytest.raises(UserError, match=r"page.png is a TIFF image: allowed are png"):
        load_one(ImagesConfig(root))
    path.unlink()
    Image.new("P", (5, 5)).save(path.with_name("old.bmp"))
    with pytest.raises(UserError, match=r"old.bmp is a BMP image with a palette"):
        load_one(ImagesConfig(root))


def test_fewer_files_are_opened_on_request(root: str) -> None:
    Path(root, "red", "deeper", "z.png").write_text("<html>not found</html>")
    load_one(ImagesConfig(root, check_files=3))
    with pytest.raises(UserError, match=r"z.png cannot be read"):
        load_one(ImagesConfig(root))


def test_bytes_behind_the_image_do_no_harm(root: str) -> None:
    path = photo(Path(root, "red", "more.jpg"))
    path.write_bytes(path.read_bytes() + b"\0" * 200)
    load_one(ImagesConfig(root))
