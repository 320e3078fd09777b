import torch

from lacova.data.table_encoder import TableEncoder
from tests.tables import VISITS, five_visits


def test_table_moves_its_data_and_keeps_patients_on_the_host():
    table = TableEncoder.learn(VISITS, five_visits()).encode(five_visits()).to(torch.device("meta"))
    assert {t.device.type for t in (table.y, table.y_mask, table.x, table.x_mask)} == {"meta"}
    assert table.patient.device.type == "cpu"
