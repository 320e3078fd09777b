import pytest
import torch

from lacova.data.batches import Batches
from lacova.data.table import Table

# Five patients with 3, 1, 4, 2 and 2 visits, interleaved.
PATIENTS = [0, 1, 2, 0, 2, 3, 2, 4, 0, 3, 2, 4]
COUNTS = [3, 1, 4, 2, 2]


def table(patient=None, rows=12):
    """Row i holds y = (i, 10 i) and x = (100 i), so that a row can be recognised in any batch."""
    i = torch.arange(rows, dtype=torch.float64)
    y, x = torch.stack([i, 10 * i], 1), 100 * i[:, None]
    labels = () if patient is None else tuple("abcde")
    patient = None if patient is None else torch.tensor(patient)
    return Table(y, y % 20 != 0, x, x % 300 != 0, patient, labels)


def rows_of(batch):
    return batch.y[:, 0].long().tolist()


def shuffled(batches, seed=0):
    return [batches.batch(units) for units in batches.shuffled(torch.Generator().manual_seed(seed))]


def full_sum(t):
    return (t.y**2).sum().item()


@pytest.mark.parametrize("patient", [None, PATIENTS])
@pytest.mark.parametrize("size", [None, 1, 2, 3, 5, 7, 100])
def test_every_row_is_visited_once(patient, size):
    batches = Batches(table(patient), size)
    assert sorted(r for b in shuffled(batches) for r in rows_of(b)) == list(range(12))
    assert sorted(r for _, b in batches.in_order() for r in rows_of(b)) == list(range(12))
    assert len(shuffled(batches)) == len(list(batches.in_order())) == len(batches)


@pytest.mark.parametrize(
    ("patient", "size", "count"), [(None, 5, 3), (None, 6, 2), (None, None, 1), (PATIENTS, 2, 3), (PATIENTS, 9, 1)]
)
def test_number_of_batches(patient, size, count):
    assert len(Batches(table(patient), size)) == count


@pytest.mark.parametrize("patient", [None, PATIENTS])
def test_all_parts_of_a_batch_are_the_same_rows(patient):
    t = table(patient)
    for b in shuffled(Batches(t, 2)):
        rows = rows_of(b)
        assert torch.equal(b.y, t.y[rows])
        assert torch.equal(b.y_mask, t.y_mask[rows])
        assert torch.equal(b.x, t.x[rows])
        assert torch.equal(b.x_mask, t.x_mask[rows])


@pytest.mark.parametrize("size", [1, 2, 3, None])
def test_patients_are_never_split_and_may_be_ragged(size):
    t = table(PATIENTS)
    for b in shuffled(Batches(t, size)):
        whose = t.patient[rows_of(b)].tolist()
        for number in range(b.patients):
            mine = [w for w, p in zip(whose, b.patient.tolist(), strict=True) if p == number]
            assert len(set(mine)) == 1
            assert len(mine) == COUNTS[mine[0]]
        assert b.patient.tolist() == sorted(b.patient.tolist())
        assert b.patients == len(set(whose))


def test_visits_of_a_patient_keep_their_order():
    for b in shuffled(Batches(table(PATIENTS), 3)):
        for number in range(b.patients):
            mine = [r for r, p in zip(rows_of(b), b.patient.tolist(), strict=True) if p == number]
            assert mine == sorted(mine)


def test_in_order_goes_through_patients_by_number():
    got = [rows_of(b) for _, b in Batches(table(PATIENTS), 2).in_order()]
    assert got == [[0, 3, 8, 1], [2, 4, 6, 10, 5, 9], [7, 11]]


def test_in_order_goes_through_rows_in_order():
    assert [rows_of(b) for _, b in Batches(table(), 5).in_order()] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11],
    ]


@pytest.mark.parametrize("patient", [None, PATIENTS])
def test_in_order_names_its_rows_and_has_scale_1(patient):
    t = table(patient)
    total = 0.0
    for rows, b in Batches(t, 2).in_order():
        assert rows.tolist() == rows_of(b)
        assert b.scale == 1.0
        total += (b.y**2).sum().item()
    assert total == full_sum(t)


def test_scale_counts_rows_without_patients():
    assert [(len(b), b.scale) for b in shuffled(Batches(table(), 5))] == [(5, 12 / 5), (5, 12 / 5), (2, 12 / 2)]


def test_scale_counts_patients_where_there_are_some():
    got = [(b.patients, b.scale) for b in shuffled(Batches(table(PATIENTS), 2))]
    assert got == [(2, 5 / 2), (2, 5 / 2), (1, 5 / 1)]


def test_one_batch_of_everything_has_scale_1():
    (b,) = shuffled(Batches(table(PATIENTS), None))
    assert (len(b), b.patients, b.scale) == (12, 5, 1.0)


@pytest.mark.parametrize(("patient", "size"), [(None, 1), (None, 3), (None, 4), (PATIENTS, 1), (PATIENTS, 5)])
def test_scaled_sums_over_an_equal_partition_average_to_the_full_sum(patient, size):
    t = table(patient)
    sums = [b.scale * (b.y**2).sum().item() for b in shuffled(Batches(t, size))]
    assert sum(sums) / len(sums) == pytest.approx(full_sum(t), rel=1e-12)
    assert size == 5 or max(sums) > min(sums)  # the batches do differ


def test_patient_partition_with_two_visit_counts_is_unbiased_too():
    t = table([0, 1, 2, 3, 0, 1, 0, 3, 3, 3, 3, 0], rows=12)
    sums = [b.scale * (b.y**2).sum().item() for b in shuffled(Batches(t, 2))]
    assert len(sums) == 2
    assert sum(sums) / 2 == pytest.approx(full_sum(t), rel=1e-12)


def test_owner_is_the_first_row_of_the_patient():
    (b,) = shuffled(Batches(table(PATIENTS), None), seed=3)
    expected = [b.patient.tolist().index(p) for p in b.patient.tolist()]
    assert b.owner.tolist() == expected
    _, first = next(Batches(table(PATIENTS), 3).in_order())
    assert first.owner.tolist() == [0, 0, 0, 3, 4, 4, 4, 4]


def test_without_patients_each_row_is_its_own_first_row():
    _, b = next(Batches(table(), 4).in_order())
    assert b.patient.tolist() == b.owner.tolist() == [0, 1, 2, 3]
    assert b.patients == 4


def test_take_numbers_patients_anew():
    _, b = next(Batches(table(PATIENTS), None).in_order())
    chosen = torch.isin(b.y[:, 0], torch.tensor([3.0, 8.0, 6.0, 7.0, 11.0], dtype=torch.float64))
    part = b.take(chosen)
    assert rows_of(part) == [3, 8, 6, 7, 11]
    assert part.patient.tolist() == [0, 0, 1, 2, 2]
    assert part.owner.tolist() == [0, 0, 2, 3, 3]
    assert torch.equal(part.x[:, 0], 100 * part.y[:, 0])
    assert torch.equal(part.y_mask, part.y % 20 != 0)
    assert torch.equal(part.x_mask, part.x % 300 != 0)


def test_take_keeps_the_scale():
    b = shuffled(Batches(table(PATIENTS), 2))[0]
    assert b.take(b.patient == 1).scale == 5 / 2


def test_shuffled_depends_on_the_generator_alone():
    batches = Batches(table(PATIENTS), 2)
    torch.manual_seed(0)
    one = [rows_of(b) for b in shuffled(batches, seed=1)]
    torch.manual_seed(1)
    assert [rows_of(b) for b in shuffled(batches, seed=1)] == one
    assert [rows_of(b) for b in shuffled(batches, seed=2)] != one


def test_epochs_with_one_generator_differ():
    batches, generator = Batches(table(), 4), torch.Generator().manual_seed(0)
    first = [rows_of(batches.batch(b)) for b in batches.shuffled(generator)]
    assert [rows_of(batches.batch(b)) for b in batches.shuffled(generator)] != first
