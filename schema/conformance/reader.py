"""Reads artifacts, archives and weights files with Python's standard library only, by the schemas of ../*.fbs.

python reader.py FILE...       prints what is in each file, as JSON
python reader.py --vectors     reads the files of vectors.json, and compares

It shows that docs/formats/ and schema/ are enough to read the files, and is slow: digests are computed in Python.
"""

import json
import re
import struct
import sys
from pathlib import Path

from xxh3 import digest, u32

HERE = Path(__file__).parent
SCALARS = {
    "bool": "?", "byte": "b", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "uint32": "I", "int64": "q",
    "uint64": "Q", "float64": "d",
}  # fmt: skip
MARK = b"jaxexp\x00\x01"
IMAGE_MARK = b"jximage\x01"


class DamagedError(ValueError):
    """The bytes are not a whole file of the formats."""


def expect(condition, what):
    if not condition:
        raise DamagedError(what)


# FlatBuffers, by schema.


class Schema:
    """The tables, structs and enums of a .fbs file and of those that it includes."""

    def __init__(self, path):
        self.tables, self.structs, self.enums = {}, {}, {}
        self._add(path)
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        self.root = re.search(r"root_type (\w+);", text)[1]

    def _add(self, path):
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        for included in re.findall(r'include "([^"]+)";', text):
            self._add(path.parent / included)
        for kind, name, base, body in re.findall(r"(table|struct|enum) (\w+)(?: : (\w+))? \{(.*?)\}", text, re.S):
            if kind == "enum":
                members = {int(number): member for member, number in re.findall(r"(\w+) = (\d+)", body)}
                self.enums[name] = SCALARS[base], members
            else:
                fields = re.findall(r"(\w+): (\[?[\w:]+\]?)([^;]*);", body)
                known = self.tables if kind == "table" else self.structs
                known[name] = [(field, of, "required" in more) for field, of, more in fields]

    def layout(self, of):
        """The size and the alignment of a scalar, a struct or an array, in bytes."""
        if of in SCALARS or of in self.enums:
            form = SCALARS[of] if of in SCALARS else self.enums[of][0]
            return struct.calcsize(form), struct.calcsize(form)
        if array := re.fullmatch(r"\[(\w+):(\d+)\]", of):
            size, alignment = self.layout(array[1])
            return size * int(array[2]), alignment
        size = alignment = 1
        end = 0
        for _, one, _ in self.structs[of]:
            size, at_multiple = self.layout(one)
            end, alignment = -(-end // at_multiple) * at_multiple + size, max(alignment, at_multiple)
        return -(-end // alignment) * alignment, alignment

    def is_inline(self, of):
        return of in SCALARS or of in self.enums or of in self.structs or ":" in of


class Reader:
    """Decodes one FlatBuffer. A shared table is decoded once; one that is inside itself is refused."""

    def __init__(self, schema, data):
        self.schema, self.data, self.made = schema, bytes(data), {}

    def root(self, of=None):
        return self.table(of or self.schema.root, self.offset(0))

    def unpack(self, form, at):
        expect(at >= 0 and at + struct.calcsize(form) <= len(self.data), "an offset leads out of the buffer")
        return struct.unpack_from("<" + form, self.data, at)[0]

    def offset(self, at):
        return at + self.unpack("I", at)

    def inline(self, of, at):
        if of in SCALARS:
            return self.unpack(SCALARS[of], at)
        if of in self.schema.enums:
            form, members = self.schema.enums[of]
            value = self.unpack(form, at)
            expect(value in members, f"{value} is no {of}")
            return members[value]
        if ":" in of:  # an array of bytes in a struct
            size, _ = self.schema.layout(of)
            expect(at + size <= len(self.data), "a struct leads out of the buffer")
            return self.data[at : at + size]
        found, end = {}, 0
        for name, one, _ in self.schema.structs[of]:
            size, alignment = self.schema.layout(one)
            end = -(-end // alignment) * alignment
            found[name] = self.inline(one, at + end)
            end += size
        return found

    def value(self, of, at):
        """What a field of a type refers to."""
        if self.schema.is_inline(of):
            return self.inline(of, at)
        at = self.offset(at)
        if of in self.schema.tables:
            return self.table(of, at)
        count = self.unpack("I", at)
        if of == "string" or of in ("[byte]", "[uint8]"):
            expect(at + 4 + count <= len(self.data), "a vector leads out of the buffer")
            content = self.data[at + 4 : at + 4 + count]
            return content.decode() if of == "string" else content
        of = of[1:-1]
        size = self.schema.layout(of)[0] if self.schema.is_inline(of) else 4
        expect(at + 4 + count * size <= len(self.data), "a vector leads out of the buffer")
        return [self.value(of, at + 4 + i * size) for i in range(count)]

    def table(self, of, at):
        if (of, at) not in self.made:
            self.made[of, at] = None
            start = at - self.unpack("i", at)
            slots = (self.unpack("H", start) - 4) // 2
            found = {"places": {}}
            for slot, (name, one, required) in enumerate(self.schema.tables[of]):
                place = self.unpack("H", start + 4 + 2 * slot) if slot < slots else 0
                found[name] = self.value(one, at + place) if place else self.default(one)
                found["places"][name] = at + place
                expect(place or not required, f"{of} has no {name}")
            self.made[of, at] = found
        expect(self.made[of, at] is not None, "a table is inside itself")
        return self.made[of, at]

    def default(self, of):
        if of in self.schema.enums:
            return self.schema.enums[of][1][0]
        if of == "bool":
            return False
        return 0 if of in SCALARS else None


EXPORTED = Schema(HERE.parent / "exported.fbs")
TRAILER = Schema(HERE.parent / "trailer.fbs")
ARCHIVE = Schema(HERE.parent / "archive.fbs")
SHORT = {"bool": "bool", "bf16": "bfloat16", "f0": "float0", "key_fry": "key<fry>", "key_rbg": "key<rbg>",
         "key_unsafe_rbg": "key<urbg>"}  # fmt: skip
LONG = {"i": "int", "ui": "uint", "f": "float", "c": "complex"}


def dtype(name):
    """JAX's name of a dtype of the schema: `float8_e5m2` for `f8_e5m2`."""
    if name in SHORT:
        return SHORT[name]
    kind, rest = re.fullmatch(r"([a-z]+)(\d.*)", name).groups()
    return LONG[kind] + rest


def avals(table, which):
    chosen = table[f"{which}_avals"] or []
    if indices := table[f"{which}_avals_idxs"]:
        expect(max(indices) < len(table["unique_avals"] or []), f"{which}_avals_idxs leads out of unique_avals")
        chosen = [table["unique_avals"][index] for index in indices]
    return [f"{dtype(aval['dtype'])}[{','.join(aval['shape'] or [])}]" for aval in chosen]


def leaves(tree):
    if tree["kind"] == "leaf":
        return 1
    return sum(map(leaves, tree["children"] or []))


def chain(table):
    while table:
        yield table
        table = table["vjp"]


def framed(data, mark, digests):
    """An artifact or an image with a trailer, without what follows it: its bytes, where modules begin, and the trailer.

    The last of its ``digests`` is that of the bytes in front of the modules.
    """
    end = u32(data, 12)
    expect(64 <= end <= len(data) and data[end - 8 : end] == mark, "the artifact is cut off")
    data = data[:end]
    modules, size = u32(data, end - 32), u32(data, end - 28)
    begin = end - 32 - 16 * digests - size
    expect(16 <= modules <= begin, "the trailer is elsewhere")
    expect(digest(data[begin : end - 24]) == data[end - 24 : end - 8], "the digest of the trailer differs")
    expect(digest(data[:modules]) == data[end - 48 : end - 32], "the digest of the signature differs")
    return data, modules, data[begin : begin + size]


def whole(image, modules):
    """The artifact that an image and its modules were."""
    image, at, trailer = framed(image, IMAGE_MARK, digests=2)
    made = bytearray(image[:at])
    made[4:12] = MARK
    functions = chain(Reader(EXPORTED, image).root())
    for function, module in zip(functions, modules, strict=True):
        place = function["places"]["mlir_module_serialized"]
        struct.pack_into("<I", made, place, len(made) - place)
        made += struct.pack("<I", len(module)) + module + bytes(-len(module) % 4)
    end = struct.pack("<II", at, len(trailer))
    struct.pack_into("<I", made, 12, len(made) + len(trailer) + 16 + len(end) + 16 + len(MARK))
    last = trailer + digest(made[:at]) + end
    return bytes(made) + last + digest(last) + MARK


NOTHING = dict.fromkeys(("writer", "constraints", "metadata", "weights", "cases", "sizes", "padded"))


def artifact(data):
    """What an artifact says; ``DamagedError`` if it is none, or was changed."""
    trailer = NOTHING
    if data[4:12] == MARK:
        data, _, noted = framed(data, MARK, digests=1)
        trailer = Reader(TRAILER, noted).root()
    functions = list(chain(Reader(EXPORTED, data).root()))
    for one in functions:
        for which in ("in", "out"):
            expect(leaves(one[f"{which}_tree"]) == len(avals(one, which)), f"{which}_tree has other leaves than avals")
    modules = [digest(one["mlir_module_serialized"] or b"") for one in functions]
    if trailer["writer"]:
        expect(
            [one["module_digest"]["bytes"] for one in trailer["functions"]] == modules, "the digest of a module differs"
        )
    first = functions[0]
    return {
        "fun_name": first["function_name"],
        "platforms": first["platforms"],
        "nr_devices": first["nr_devices"] or first["nr_devices_short"],
        "arguments": avals(first, "in"),
        "results": avals(first, "out"),
        "vjp_order": len(functions) - 1,
        "module_digests": [one.hex() for one in modules] if trailer["writer"] else [],
        "jax_version": first["jax_version"],
        "trailer": trailer["writer"],
        "constraints": trailer["constraints"] or [],
        "sizes": [{one["variable"]: one["size"] for one in row["sizes"]} for row in trailer["sizes"] or []],
        "padded": trailer["padded"] or [],
        "metadata": {one["key"]: json.loads(one["value"]) for one in trailer["metadata"] or []},
        "weights": [one["name"] for one in (trailer["weights"] or {"tensors": []})["tensors"]],
        "cases": [one["name"] for one in (trailer["cases"] or {"cases": []})["cases"]],
    }


def weights(data):
    """The tensors of a weights file: their dtypes, shapes and digests."""
    size = int.from_bytes(data[:8], "little")
    expect(len(data) >= 8 + size, "the file is cut off")
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    found, ends = {}, [0]
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        expect(begin == ends[-1] and 8 + size + end <= len(data), f"{name} is not where the tensor before it ends")
        ends.append(end)
        content = digest(data[8 + size + begin : 8 + size + end])
        found[name] = {
            "dtype": metadata.get(f"dtype:{name}", entry["dtype"]),
            "shape": entry["shape"],
            "xxh3": content.hex(),
        }
    listed = [[name, one["dtype"], one["shape"], one["xxh3"]] for name, one in sorted(found.items())]
    said = digest(json.dumps(listed, separators=(",", ":"), ensure_ascii=False).encode()).hex()
    before_2026_11_26 = digest(b"".join(bytes.fromhex(one[-1]) for one in listed)).hex()
    expect(metadata.get("content", said) in (said, before_2026_11_26), "the digest of the tensors differs")
    return dict(sorted(found.items()))


def end_of(data):
    """Where an archive ends: where its last complete section does, or, before there were sections, with the file."""
    found = position = 0
    while position + 30 <= len(data):
        name, extra = struct.unpack_from("<HH", data, position + 26)
        at = position + 30 + name + extra
        mark, begin, end, last = struct.unpack_from("<8sQQ16s", data, at) if at + 64 <= len(data) else (b"", 0, 0, b"")
        if mark != b"jxsect\x00\x01" or begin != position or not position < end <= len(data):
            break
        expect(digest(data[at : at + 48]) == data[at + 48 : at + 64], "the digest of a section's head differs")
        expect(digest(data[end - 134 : end]) == last, "the digest of a section's end differs")
        found = position = end
    return found or len(data)


def archive(data):
    """What each member of an archive says."""
    pattern = r"jaxexp archive 1, index (\w{16}) (\w{8}), root (\w{8}) (\w{8}), xxh3 (\w{32})"
    end = end_of(data)
    found = re.fullmatch(pattern, data[end - 112 : end].decode("ascii", "replace"))
    expect(found, "the comment says no index")
    position, size, root, root_size = (int(number, 16) for number in found.groups()[:4])
    index = data[position : position + size]
    top = index[root : root + root_size]
    expect(digest(top).hex() == found[5], "the digest of the index's root differs")
    top = Reader(ARCHIVE, top).root()
    places = top["moved"] or top["blocks"]
    members = {}
    for place in places:
        begin = place["position"] + (0 if top["moved"] else position)
        block = data[begin : begin + place["size"]]
        expect(digest(block) == place["digest"]["bytes"], "the digest of a block differs")
        for member in Reader(ARCHIVE, block).root("Block")["members"]:
            stored = member["place"]
            content = data[stored["position"] : stored["position"] + stored["size"]]
            if stored["apart"]:
                modules = [data[one["position"] : one["position"] + one["size"]] for one in member["modules"]]
                content = whole(content, modules)
            expect(digest(content) == member["digest"]["bytes"], f"the digest of {member['name']} differs")
            members[member["name"]] = artifact(content)
    return members


KINDS = {".jaxexp": artifact, ".zip": archive, ".safetensors": weights}


def read(path):
    """What is in a file, by its suffix. Raises ``DamagedError``."""
    try:
        return KINDS[path.suffix](path.read_bytes())
    except (struct.error, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def main(arguments):
    if arguments != ["--vectors"]:
        for name in arguments:
            print(json.dumps(read(Path(name)), indent=1))
        return 0
    wrong = 0
    for name, says in json.loads((HERE / "vectors.json").read_text(encoding="utf-8")).items():
        try:
            found = read(HERE / name)
        except DamagedError as error:
            found = None
            print(f"{name}: {error}")
        if found != says:
            wrong += 1
            print(f"{name} differs: {found} in place of {says}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
