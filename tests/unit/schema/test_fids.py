import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.errors import InvalidRequest
from megalith.schema.fids import V1, V2, v1_to_v2

SIGNATURES = st.integers(0, 2**64 - 1)


def parts(layout, fid):
    return int(layout.slots(fid)), int(layout.signatures(fid))


@pytest.mark.golden("FIDTest.FIDV1")
def test_a_v1_fid_has_1024_slots_and_54_bits_below():
    assert parts(V1, V1.pack(1, 100)) == (1, 100)
    assert parts(V1, V1.pack(1023, 2**54)) == (1023, 0)
    for slot in (1024, 1025):
        with pytest.raises(InvalidRequest, match=f"slot {slot} is outside 0..1023"):
            V1.pack(slot, 100)


@pytest.mark.golden("FIDTest.FIDV2")
def test_a_v2_fid_has_32768_slots_and_48_bits_below():
    assert parts(V2, V2.pack(1024, 2**54)) == (1024, 0)
    assert parts(V2, V2.pack(32767, 2**48)) == (32767, 0)
    with pytest.raises(InvalidRequest, match=r"slot 32768 is outside 0\.\.32767"):
        V2.pack(32768, 1)


@pytest.mark.golden("ReaderUtilTest.GetSlotID")
def test_the_slot_of_a_v2_fid_is_its_top_15_bits():
    assert V2.slots([123 << 48, (2**15 - 1) << 48]).tolist() == [123, 32767]


@pytest.mark.golden("HashTableOpsTest.test_extract_fid")
def test_the_slot_of_the_first_fid_of_slot_1():
    assert int(V2.slots(1 << 48)) == 1


def test_v1_ids_of_high_slots_are_negative_and_keep_their_slot():
    fids = V1.pack([511, 512, 1023], 7)
    assert fids.dtype == np.int64
    assert (fids < 0).tolist() == [False, True, True]
    assert V1.slots(fids).tolist() == [511, 512, 1023]


def test_v1_to_v2_keeps_the_slot_and_drops_the_top_six_signature_bits():
    fid = v1_to_v2(V1.pack([3, 1023], (0b101011 << 48) | 12345))
    assert V2.slots(fid).tolist() == [3, 1023]
    assert V2.signatures(fid).tolist() == [12345, 12345]


@pytest.mark.parametrize("layout", [V1, V2], ids=lambda layout: layout.name)
@given(data=st.data())
def test_pack_and_unpack_agree_with_plain_integers(layout, data):
    slots = data.draw(st.lists(st.integers(0, layout.num_slots - 1), max_size=5))
    signatures = data.draw(st.lists(SIGNATURES, min_size=len(slots), max_size=len(slots)))
    mask = 2**layout.signature_bits - 1
    fids = layout.pack(np.array(slots, np.int64), np.array(signatures, np.uint64))
    expected = [
        (slot << layout.signature_bits) | (sig & mask)
        for slot, sig in zip(slots, signatures, strict=True)
    ]
    assert fids.view(np.uint64).tolist() == expected
    assert layout.slots(fids).tolist() == slots
    assert layout.signatures(fids).tolist() == [sig & mask for sig in signatures]


@pytest.mark.parametrize("bad", [[1.5], ["a"], [True]])
def test_ids_that_are_not_integers_are_refused(bad):
    for call in (
        V2.slots,
        V2.signatures,
        lambda fids: V2.pack(1, fids),
        lambda slots: V2.pack(slots, 1),
    ):
        with pytest.raises(InvalidRequest, match="expected integers"):
            call(bad)


def test_an_empty_list_gives_no_ids():
    assert V2.pack([], []).tolist() == V2.slots([]).tolist() == []


def test_a_negative_slot_is_refused():
    with pytest.raises(InvalidRequest, match="slot -1 is outside"):
        V2.pack([-1], [1])
