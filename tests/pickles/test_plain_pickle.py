# SPDX-License-Identifier: Apache-2.0
"""A pickle is read as data: the same value as Python's own reader gives, and nothing is run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron.torch_trace.pickles.pickle_bytes import NotPlainError
from megatron.torch_trace.pickles.plain_pickle import PlainPickle

one_value = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.text(),
    st.floats(allow_nan=False),
)
plain = st.recursive(
    one_value,
    lambda inner: st.one_of(
        st.lists(inner),
        st.dictionaries(st.text() | st.integers(), inner),
        st.tuples(inner, inner),
        st.lists(st.sampled_from(["name", "file", "line"]), min_size=2),
    ),
    max_leaves=40,
)


def keep(into: list[Any], items: list[Any]) -> bool:
    return False


def read(text: bytes, piece: int = 1 << 20) -> Any:
    pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
    return PlainPickle(pieces, keep).value()


def as_lists(value: Any) -> Any:
    """Lists of things that came before are tuples: made equal to what pickle gives."""
    if isinstance(value, (list, tuple)):
        return [as_lists(one) for one in value]
    if isinstance(value, dict):
        return {key: as_lists(one) for key, one in value.items()}
    return value


@settings(deadline=None, max_examples=300)
@given(plain, st.integers(2, 5), st.integers(1, 400))
def test_plain_data_is_what_pickle_reads(value: Any, protocol: int, piece: int) -> None:
    # The same object twice, so that the second one refers to the first.
    text = pickle.dumps([value, value, [value]], protocol)
    assert as_lists(read(text, piece)) == as_lists([value, value, [value]])


def test_bytes_are_read() -> None:
    value = [b"", b"short", b"x" * 300]
    assert read(pickle.dumps(value, 3)) == value


def test_texts_of_all_lengths_and_many_lists_are_read() -> None:
    value = {"texts": ["x" * size for size in (0, 255, 256, 70_000, 3_000_000)]}
    value["again"] = [value["texts"]] * 1500
    assert as_lists(read(pickle.dumps(value, 4), 1000)) == value


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_would_run_something_is_refused_by_name_and_runs_nothing(
    tmp_path: Path, protocol: int
) -> None:
    marker = tmp_path / "ran"
    text = pickle.dumps({"segments": [Hostile(marker)]}, protocol)
    with pytest.raises(NotPlainError, match="which is not plain data"):
        read(text)
    assert not marker.exists()
    pickle.loads(text)
    assert marker.exists()  # it would have


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "is no pickle of protocol 2 or later"),
        (b"\x80\x02cos\nsystem\n)R.", "asks for os.system, which is not plain data"),
        (b"\x80\x02\x01.", "is no pickle: it has the code 0x01"),
        (b"", "is no pickle of protocol 2 or later"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "asks for os.system, which is not plain data"),
        (b"\x80\x02\x82\x01.", "asks for EXT1, which is not plain data"),
        (b"\x80\x02K\x01Q.", "asks for BINPERSID, which is not plain data"),
        (b"\x80\x02}K\x01b.", "asks for BUILD, which is not plain data"),
        (b"\x80\x02K\x01K\x01R.", "asks for a call, which is not plain data"),
        (b"\x80\x04h\x07.", "is no pickle"),
        (b"\x80\x04K\x01e.", "is no pickle"),
        (b"\x80\x04K\x01(K\x01e.", "is no pickle"),
        (b"\x80\x04}(]K\x01u.", "is no pickle"),
        (b"\x80\x04.", "holds no value"),
        (b'{"traceEvents": []}', "is no pickle"),
        (b"\x80\x04B\xff\xff\xff\xff", "holds a text of 4,294,967,295 bytes"),
        (b"\x80\x04\x8d" + b"\xff" * 8, "holds a text of"),
        (b"\x80\x02K\x01r\xff\xff\xff\x7f.", "remembers number 2,147,483,647 after 0"),
    ],
    ids=lambda value: value.decode("latin-1") if isinstance(value, bytes) else None,
)
def test_what_is_not_plain_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(NotPlainError, match=reason):
        read(text)


def test_lists_and_dictionaries_of_torchs_cpp_are_their_values() -> None:
    # torch::jit::Pickler wraps them in a call that only notes their type.
    text = b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\n(](K\x01K\x02eX\x09\0\0\0List[int]tR."
    assert read(text) == [1, 2]


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_a_pickle_cut_anywhere_gives_what_is_whole(data: st.DataObject) -> None:
    value = {
        "segments": [{"size": number, "frames": ["a", "b"]} for number in range(30)],
        "device_traces": [[{"action": "alloc", "addr": 1 << 40, "size": number}
                           for number in range(30)]],
    }  # fmt: skip
    text = pickle.dumps(value, 4)
    cut = data.draw(st.integers(3, len(text) - 1))
    reader = PlainPickle([text[:cut]], keep)
    try:
        found = reader.value()
    except NotPlainError as error:
        assert "holds no value" in str(error)  # noqa: PT017
        return
    assert reader.cut_short
    for name in found:
        whole = value[name]
        if name == "device_traces" and found[name]:
            whole, found[name] = whole[0], found[name][0]
        assert (
            as_lists(found[name][: len(found[name]) - 1]) == whole[: max(0, len(found[name]) - 1)]
        )


def test_a_taken_list_is_handed_on_and_not_kept() -> None:
    events = [{"action": "alloc", "frames": [], "n": number} for number in range(2500)]
    got: list[Any] = []

    def take(into: list[Any], items: list[Any]) -> bool:
        if not isinstance(items[0], dict) or "action" not in items[0]:
            return False
        got.extend(items)
        return True

    assert PlainPickle([pickle.dumps({"trace": events}, 4)], take).value() == {"trace": []}
    assert got == events
