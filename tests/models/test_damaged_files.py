"""Random damage: no file does harm, and none is loaded whose bytes were changed."""

import json
import random
import sys

from tests.data.io.test_archive import put, seal, split
from tests.models.saved_models import attempt

VALUES = [
    None, True, False, 0, -1, 1, 2, 3, 2**31, 2**63, 10**40, 0.5, 1e308, -0.0, "", "x", "lacova", "joint", "knn",
    "paper", "oracle", "day", "sex", "gp(age)*gp(day)", "__import__('os')", "\x1b[31m\n", 500 * "y", [], {}, [[]],
    [1, 2], {"map": []}, {"map": [["a", 1]]}, {"float": "nan"}, {"float": "inf"}, {"timestamp": [0, "s"]},
    {"timestamp": [-(2**63), "ns"]}, {"kind": "Conv"}, ["f", "m"], 200 * [[1]],
]  # fmt: skip


def places(value, way=()):
    """Yield every place within a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*way, key)
        yield from places(part, (*way, key))


def edit_document(rng, data):
    """Change some values of the document, with a checksum that fits."""
    header, document, body = split(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        *way, key = rng.choice(list(places(document)))
        inner = document
        for step in way:
            inner = inner[step]
        kind = rng.choice(["set", "set", "set", "delete", "copy", "wrap", "number"])
        if kind == "delete":
            del inner[key]
        elif kind == "copy" and isinstance(inner, list):
            inner.insert(rng.randrange(len(inner) + 1), inner[key])
        elif kind == "wrap":
            inner[key] = rng.choice([[inner[key]], {"map": inner[key]}, {"map": [[inner[key], 1]]}, str(inner[key])])
        elif kind == "number" and type(inner[key]) in (int, float):
            inner[key] = inner[key] * rng.choice([-1, 0, 2, 0.5, 1000]) + rng.choice([-1, 0, 1])
        else:
            inner[key] = json.loads(json.dumps(rng.choice(VALUES)))
    return seal(header, document, body)


def edit_header(rng, data):
    """Change an entry of the header or the tensors, with a checksum that fits."""
    header, document, body = split(data)
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry, other = header[name], header[rng.choice([n for n in header if n not in ("__metadata__", name)])]
    number = rng.choice([0, 1, 2, -1, 7, 2**40, 2**62, 2**64, 0.5, None, "1"])
    match rng.randrange(8):
        case 0:
            header[name] = rng.choice(VALUES)
        case 1:
            entry["dtype"] = rng.choice(["F64", "F32", "F16", "I64", "BOOL", "F4", "C64", "", None, 5])
        case 2:
            entry["shape"] = rng.choice([[number], [*entry["shape"], number], entry["shape"][:-1], number, [0, 2**62]])
        case 3:
            entry["data_offsets"] = rng.choice([other["data_offsets"], [number, number], [0], number])
        case 4:
            header[name], header["vae." + name] = other, entry
        case 5:
            del header[name]
        case 6:
            body = flip(rng, body)
        case 7:
            body = body[: rng.randrange(len(body))] + body[rng.randrange(len(body)) :]
    return seal(header, document, body)


def flip(rng, data):
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 30])):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def insert(rng, data):
    place = rng.randrange(len(data))
    return data[:place] + rng.randbytes(rng.choice([1, 1, 8, 100])) + data[place:]


def delete(rng, data):
    place = rng.randrange(len(data))
    return data[:place] + data[place + rng.choice([1, 1, 8, 100]) :]


def truncate(rng, data):
    return data[: rng.randrange(len(data))]


def repeat(rng, data):
    start = rng.randrange(len(data))
    block = data[start : start + rng.choice([1, 16, 4096])]
    place = rng.randrange(len(data))
    return data[:place] + block + data[place + rng.choice([0, len(block)]) :]


def resize(rng, data):
    length = int.from_bytes(data[:8], "little")
    claim = rng.choice(
        [0, 1, length - 1, length + 1, length + 8, len(data), 2**32, 2**63, 2**64 - 1, rng.getrandbits(64)]
    )
    return claim.to_bytes(8, "little") + data[8:]


BYTE_EDITS = [flip, insert, delete, truncate, repeat, resize]


FORBIDDEN = {"exec", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "marshal.loads"}


watched: list[str] | None = None  # events since loading began; None outside of it


def watch(event, arguments):
    """Record what loading must not do: run code, start processes, write files."""
    if watched is not None and (event in FORBIDDEN or (event == "open" and arguments[1] not in ("rb", "r", None))):
        watched.append(f"{event} {arguments}"[:200])


def test_two_thousand_damaged_files_do_no_harm(small, tmp_path):
    global watched
    sys.addaudithook(watch)  # cannot be removed; outside this test it ignores all events
    rng = random.Random(20240229)
    loaded = {"unsealed": 0, "sealed": 0}
    for data in small.values():
        assert attempt(tmp_path / "x", data) is not None  # and imports what it needs before events are recorded
    for k in range(2000):
        name = rng.choice(list(small))
        if k % 2:
            kind, data = "unsealed", rng.choice(BYTE_EDITS)(rng, small[name])
        else:
            kind, data = "sealed", rng.choice([edit_document, edit_document, edit_header])(rng, small[name])
        if data == small[name]:
            continue
        put(tmp_path / "x", data)
        watched = []
        try:
            model = attempt(tmp_path / "x")
        finally:
            seen, watched = watched, None
        assert seen == [], (k, name)
        loaded[kind] += model is not None
    assert loaded["unsealed"] == 0
    assert loaded["sealed"] > 50  # changes that make sense, such as another label
