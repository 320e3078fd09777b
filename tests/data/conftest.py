import pytest


@pytest.fixture
def written(tmp_path):
    """A function that writes a table to Parquet with row groups of so many rows, and returns the path."""

    def write(frame, group=7, name="t.parquet"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path, row_group_size=group, index=False)
        return path

    return write
