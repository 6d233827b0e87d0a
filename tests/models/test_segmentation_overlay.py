import numpy as np

from models.segmentation.overlay import blend, draw, shares


def test_colours_are_laid_over_by_their_share():
    pixels, labels = np.full((30, 2, 3), 100, np.uint8), np.array([[0, 1]] * 30)
    names, palette = ("sky", "sea", "sand"), ((200, 100, 0), (0, 0, 100), (9, 99, 9))
    drawn = np.asarray(draw(pixels, labels, names, palette, 0.25))
    assert drawn[0, :2].tolist() == [[125, 100, 75], [75, 75, 100]]
    legend = {tuple(color) for color in drawn[:, 2:].reshape(-1, 3).tolist()}
    assert {palette[0], palette[1]} <= legend and palette[2] not in legend
    assert np.array_equal(np.asarray(draw(pixels, labels, names, palette, 0.0))[:30, :2], pixels)


def test_shares_are_of_the_classes_that_are_there():
    assert shares(np.array([[3, 3, 3, 0]])) == {3: 0.75, 0: 0.25}


def test_what_is_not_labelled_keeps_its_pixels():
    pixels, truth = np.full((2, 2, 3), 100, np.uint8), np.array([[0, 255], [255, 1]])
    assert blend(pixels, truth, ((200, 0, 0), (0, 200, 0)), 1.0)[..., 1].tolist() == [[0, 100], [100, 200]]


def test_the_truth_stands_beside_the_prediction():
    pixels, labels, truth = np.zeros((40, 3, 3), np.uint8), np.zeros((40, 3), int), np.full((40, 3), 255)
    drawn = np.asarray(draw(pixels, labels, ("sky", "sea"), ((200, 0, 0), (0, 200, 0)), 1.0, truth))
    assert (drawn[:, :3] == (200, 0, 0)).all() and (drawn[:, 3:6] == 0).all()
