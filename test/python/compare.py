"""Opens what write_checkpoint has written with the format's own library and compares every value.

    python compare.py FOLDER

FOLDER/expected.txt has a line for each tensor of each file: file, tensor, dtype, shape, bytes in
hexadecimal. Neither more nor less than these may be there.
"""
import pathlib
import sys

import numpy
from safetensors import deserialize, safe_open
from safetensors.numpy import load_file

folder = pathlib.Path(sys.argv[1])
expected = {}
for line in (folder / "expected.txt").read_text().splitlines():
    file, tensor, dtype, shape, data = line.split(" ")
    extents = [int(extent) for extent in shape.split(",") if extent]
    expected.setdefault(file, {})[tensor] = (dtype, extents, bytes.fromhex(data))

compared = 0
for file, tensors in expected.items():
    path = folder / file
    stored = dict(deserialize(path.read_bytes()))
    assert stored.keys() == tensors.keys(), (file, stored.keys() ^ tensors.keys())
    for name, (dtype, shape, data) in tensors.items():
        assert stored[name]["dtype"] == dtype, (file, name, stored[name]["dtype"])
        assert list(stored[name]["shape"]) == shape, (file, name, stored[name]["shape"])
        assert bytes(stored[name]["data"]) == data, (file, name)
        compared += 1
    # As arrays: numpy itself has no bf16.
    if all(dtype != "BF16" for dtype, _, _ in tensors.values()):
        for name, array in load_file(path).items():
            dtype, shape, data = tensors[name]
            assert array.dtype == {"F32": numpy.float32, "U8": numpy.uint8}[dtype], (file, name)
            assert list(array.shape) == shape and array.tobytes() == data, (file, name)
    with safe_open(path, framework="numpy") as opened:
        assert opened.metadata()["format"], file
print(f"{compared} tensors of {len(expected)} files are equal, bit for bit")
