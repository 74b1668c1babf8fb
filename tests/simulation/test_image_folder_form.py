"""Folders of images without a scenario: their size and colours are those of the images."""

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data import image_folder
from delian.simulations.scenario.datasets import load_data, scenario_for

image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path):
    """Makes a folder of two classes of images of this size and mode; gives it."""

    def make(size, mode, count=40):
        rng = np.random.default_rng(0)
        for name in ("a", "b"):
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            for k in range(count):
                pixels = rng.integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
                image.fromarray(pixels).convert(mode).save(
                    tmp_path / "photos" / name / f"{mode}{k}.png"
                )
        return tmp_path / "photos"

    return make


@pytest.mark.parametrize(
    ("size", "mode", "shape"),
    [
        ((8, 8), "L", (8, 8, 1)),
        ((20, 24), "RGB", (20, 20, 3)),
        ((100, 60), "L", (32, 32, 1)),
        ((4, 5), "P", (8, 8, 3)),
    ],
)
def test_rows_have_the_images_side_and_channels(folder, size, mode, shape):
    path = folder(size, mode)
    scenario = scenario_for(None, path)
    assert load_data(scenario, path).example_shape == shape
    assert (scenario.data.side, scenario.data.colour) == (shape[0], shape[2] == 3)
    assert scenario.model.name == "cnn"
    rates = scenario.algorithm.learning_rate, scenario.algorithm.personal_learning_rate
    assert rates == ((0.003, 0.01) if shape[0] < 16 else (0.001, 0.001))


def test_one_image_with_colours_gives_all_three_channels(folder):
    folder((12, 12), "L")
    assert image_folder(folder((12, 12), "RGB", count=1)).x.shape == (82, 12, 12, 3)


def test_a_file_that_is_no_image_is_named(folder):
    path = folder((8, 8), "L", count=2)
    (path / "a" / "notes.png").write_text("not an image")
    with pytest.raises(DelianError, match=r"notes\.png is no image"):
        image_folder(path)
