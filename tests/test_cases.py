"""Cases: which test images are chosen, and what is said of them."""

from __future__ import annotations

import numpy as np
import torch
from made_up import WITH, made_up

from spatial_transformer.experiments import cases


def test_other_cases_come_after_those_that_are_saved():
    one = made_up(WITH, np.zeros((6, 6), np.float16), predictions=[0, 1, 2, 3, 9, 5])
    labels = torch.arange(6)
    base = np.array([0, 1, 2, 8, 8, 8], np.uint8)
    assert cases.chosen_cases(one, labels, ("FCN", base)) == ([3, 5, 0, 1, 2, 4], 2)
    assert cases.cases_title(one, 6, 6, 2, ("FCN", base)) == (
        "Where the FCN is wrong and the ST-FCN affine is right: 2 of 6 test images, and 4 others"
    )


def test_an_answer_of_several_digits_is_right_where_all_of_them_are():
    one = made_up(WITH, np.zeros((4, 6), np.float16), predictions=[[1, 2], [3, 4], [5, 6], [7, 0]])
    labels = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    base = np.array([[1, 2], [3, 0], [5, 6], [7, 8]], np.uint8)
    assert cases.chosen_cases(one, labels, ("CNN", base)) == ([1, 0, 2, 3], 1)
    assert cases.chosen_cases(one, labels, None) == ([0, 1, 2, 3], 0)


def test_one_image_of_each_class_is_watched():
    truth = np.array([3, 3, 1, 4, 1, 0, 3])
    predictions = np.array([9, 3, 1, 4, 1, 7, 3, 5, 5])
    assert cases.watched(truth, predictions) == [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
    ]  # fewer than there is room for
    truth, predictions = (np.concatenate([[2, 2], np.arange(10), [0]]) for _ in range(2))
    assert cases.watched(truth, predictions) == [0, 2, 3, 5, 6, 7, 8, 9]
