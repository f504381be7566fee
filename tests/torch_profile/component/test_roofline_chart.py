# SPDX-License-Identifier: Apache-2.0
"""Labels of points in the roofline: none covers another one."""

from __future__ import annotations

from megatron.torch_profile.component.answer.roofline_chart import Point, _labelled


def labelled(*spots: tuple[float, float]) -> list[float]:
    points = [Point(x, y, "flash", "", x + 9, y) for x, y in spots]
    return [one.label_y for one in _labelled(points)]


def test_labels_of_points_that_are_near_stand_below_one_another() -> None:
    assert labelled((100, 50), (100, 48)) == [63, 48]


def test_labels_of_points_that_are_far_apart_stay_where_they_are() -> None:
    assert labelled((100, 50), (200, 50), (100, 70)) == [50, 50, 70]


def test_three_points_at_the_same_spot_have_three_labels() -> None:
    assert labelled((100, 50), (100, 50), (100, 50)) == [50, 63, 76]
