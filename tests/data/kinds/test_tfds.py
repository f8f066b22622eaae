from __future__ import annotations

import fcntl
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooodist.config.data import TFDSConfig
from ooodist.data.kinds import tfds as tfds_data
from ooodist.data.lanes import RecordFiles
from ooodist.errors import UserError
from tests.data.laws import assert_laws, batches, joined, load_one

tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")


class SmallShapes(tfds.core.GeneratorBasedBuilder):
    """Images of one brightness, which is 10 times the label; the size varies in `photo`."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(4, 4, 1)),
                    "photo": tfds.features.Image(shape=(None, None, 3)),
                    "label": tfds.features.ClassLabel(num_classes=5),
                    "brightness": tfds.features.Tensor(shape=(), dtype=np.float32),
                    "name": tfds.features.Text(),
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples(23), "test": self._generate_examples(5)}

    def _generate_examples(self, count: int) -> Any:
        for number in range(count):
            label = number % 5
            yield (
                number,
                {
                    "image": np.full((4, 4, 1), 10 * label, np.uint8),
                    "photo": np.full((5 + label, 6, 3), 10 * label, np.uint8),
                    "label": label,
                    "brightness": 10.0 * label,
                    "name": f"number {number}",
                },
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("datasets")
    SmallShapes(data_dir=str(root)).download_and_prepare()
    return str(root)


def config(folder: str, **more: Any) -> TFDSConfig:
    return TFDSConfig("small_shapes", **({"data_dir": folder, "shuffle_buffer": 8} | more))


def test_laws(folder: str) -> None:
    assert_laws(config(folder, validation_split="test"))


def test_a_part_of_several_files_is_shared_out_by_file(tmp_path: Path) -> None:
    settings = tfds.download.DownloadConfig(num_shards=5)
    SmallShapes(data_dir=str(tmp_path)).download_and_prepare(download_config=settings)
    part = config(str(tmp_path), split="train[10%:]", y="brightness", x="brightness")
    source = tfds_data.source(part)
    assert isinstance(source.train, RecordFiles)
    assert len(source.train.files) == 5
    assert sum(file.take for file in source.train.files) == 21
    assert_laws(part, batch=3)


def test_the_supervised_pair(folder: str) -> None:
    data = load_one(config(folder, validation_split="test"), batch=23)
    (x, y), *_ = batches(data.train, 1)
    assert (data.num_samples, data.num_validation_samples) == (23, 5)
    assert (data.task, data.num_classes) == ("classification", 5)
    assert x.dtype == np.float32
    assert y.dtype == np.int32
    assert np.allclose(x[:, 0, 0, 0], y * 10 / 255)
    assert sorted(joined(batches(data.validation))[1]) == [0, 1, 2, 3, 4]
    assert "small_shapes/1.0.0" in data.description


def test_photos_of_several_sizes_and_a_part_of_a_split(folder: str) -> None:
    settings = config(folder, x="photo", y="label", image_size=3, split="train[:12]")
    data = load_one(settings, batch=12)
    (x, y), *_ = batches(data.train, 1)
    assert x.shape == (12, 3, 3, 3)
    assert np.allclose(x[:, 2, 2, 2], y * 10 / 255)
    assert_laws(settings, batch=2)


def test_regression_with_a_scale(folder: str) -> None:
    data = load_one(config(folder, x="image", y="brightness", scale=2.0), batch=23)
    (x, y), *_ = batches(data.train, 1)
    assert (data.task, data.num_classes) == ("regression", None)
    assert np.array_equal(x[:, 0, 0, 0], y * 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "dev"}, "has no split dev: it has test, train"),
        ({"validation_split": "dev"}, "has no split dev"),
        ({"x": "picture", "y": "label"}, "name two of its features, brightness, image, label"),
        ({"x": "photo", "y": "label"}, "feature photo .* set data.image_size"),
        ({"x": "name", "y": "label"}, "feature name of small_shapes has dtype string"),
        ({"x": "brightness", "y": "label", "image_size": 3}, "brightness .* is no image"),
        ({"num_classes": 3, "x": "image", "y": "brightness"}, "data.num_classes is 3, but y"),
    ],
)
def test_errors(folder: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_one(config(folder, **settings))


def test_labels_out_of_range_end_the_training(folder: str) -> None:
    data = load_one(config(folder, num_classes=3))
    with pytest.raises(Exception, match="a label of small_shapes is out of range"):
        batches(data.train, 6)


@pytest.mark.parametrize("name", ["no_such_set", "not a name", "small_shapes:9.9.9"])
def test_unknown_names(folder: str, name: str) -> None:
    with pytest.raises(UserError, match=f"data.dataset {name} is not known"):
        load_one(TFDSConfig(name, data_dir=folder))


def test_not_prepared_and_not_allowed_to(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not prepared in .*data.download is false"):
        load_one(config(str(tmp_path), download=False))


def test_workers_prepare_it_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "small_shapes").mkdir()
    with open(tmp_path / "small_shapes" / ".ooodist.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        loaded: list[Any] = []
        worker = threading.Thread(target=lambda: loaded.append(load_one(config(str(tmp_path)))))
        worker.start()
        worker.join(timeout=1)
        assert worker.is_alive()
        assert not (tmp_path / "small_shapes" / "1.0.0").exists()
    worker.join(timeout=60)
    assert loaded[0].num_samples == 23


def test_the_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match="pip install tensorflow-datasets importlib_resources"):
        load_one(TFDSConfig("mnist"))
