"""XXH3 with 128 bits: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md"""

import struct

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
M32, M64 = 2**32 - 1, 2**64 - 1
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def u32(data, at):
    return int.from_bytes(data[at : at + 4], "little")


def u64(data, at):
    return int.from_bytes(data[at : at + 8], "little")


def swapped(number, size):
    return int.from_bytes(number.to_bytes(size, "little"), "big")


def avalanche(h, shift=37, prime=0x165667919E3779F9, last=32):
    h = (h ^ (h >> shift)) * prime & M64
    return h ^ (h >> last)


def xxh64_avalanche(h):
    h = (h ^ (h >> 33)) * P64[1] & M64
    return avalanche(h, 29, P64[2])


def folded(a, b):
    product = a * b
    return (product & M64) ^ (product >> 64)


def digest(data):
    """The digest of bytes, as 16 bytes."""
    data = bytes(data)
    size = len(data)
    if size <= 16:
        low, high = _short(data, size)
    elif size <= 240:
        low, high = _middle(data, size)
    else:
        low, high = _long(data, size)
    return (high << 64 | low).to_bytes(16, "big")


def _short(data, size):
    if size == 0:
        return tuple(xxh64_avalanche(u64(SECRET, at) ^ u64(SECRET, at + 8)) for at in (64, 80))
    if size <= 3:
        low = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        turned = swapped(low, 4)
        high = (turned << 13 | turned >> 19) & M32
        keys = (u32(SECRET, at) ^ u32(SECRET, at + 4) for at in (0, 8))
        return tuple(xxh64_avalanche(part ^ key) for part, key in zip((low, high), keys, strict=True))
    if size <= 8:
        keyed = (u32(data, 0) | u32(data, size - 4) << 32) ^ u64(SECRET, 16) ^ u64(SECRET, 24)
        product = keyed * (P64[0] + (size << 2))
        low, high = product & M64, product >> 64
        high = (high + (low << 1)) & M64
        low ^= high >> 3
        return avalanche(low, 35, 0x9FB21C651E98DF25, 28), avalanche(high)
    first, last = u64(data, 0), u64(data, size - 8)
    product = (first ^ last ^ u64(SECRET, 32) ^ u64(SECRET, 40)) * P64[0]
    low = ((product & M64) + ((size - 1) << 54)) & M64
    last ^= u64(SECRET, 48) ^ u64(SECRET, 56)
    high = ((product >> 64) + last + (last & M32) * (P32[1] - 1)) & M64
    low ^= swapped(high, 8)
    product = low * P64[1]
    return avalanche(product & M64), avalanche(((product >> 64) + high * P64[1]) & M64)


def _middle(data, size):
    low, high = size * P64[0] & M64, 0

    def mixed(at, key, seed=0):
        return folded(
            u64(data, at) ^ ((u64(SECRET, key) + seed) & M64), u64(data, at + 8) ^ ((u64(SECRET, key + 8) - seed) & M64)
        )

    def mix(first, second, key):
        nonlocal low, high
        low = (low + mixed(first, key)) & M64 ^ ((u64(data, second) + u64(data, second + 8)) & M64)
        high = (high + mixed(second, key + 16)) & M64 ^ ((u64(data, first) + u64(data, first + 8)) & M64)

    if size <= 128:
        for part in reversed(range((size - 1) // 32 + 1)):
            mix(16 * part, size - 16 * (part + 1), 32 * part)
    else:
        for part in range(4):
            mix(32 * part, 32 * part + 16, 32 * part)
        low, high = avalanche(low), avalanche(high)
        for part in range(4, size // 32):
            mix(32 * part, 32 * part + 16, 3 + 32 * (part - 4))
        mix(size - 16, size - 32, 103)
    total = (low * P64[0] + high * P64[3] + size * P64[1]) & M64
    return avalanche((low + high) & M64), -avalanche(total) & M64


def _long(data, size):
    acc = [P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]]
    keys = [struct.unpack_from("<8Q", SECRET, at) for at in (*range(0, 128, 8), 121)]
    scramble = struct.unpack_from("<8Q", SECRET, 128)

    def add(at, key):
        for i, value in enumerate(struct.unpack_from("<8Q", data, at)):
            keyed = value ^ key[i]
            acc[i ^ 1] = (acc[i ^ 1] + value) & M64
            acc[i] = (acc[i] + (keyed & M32) * (keyed >> 32)) & M64

    for stripe in range((size - 1) // 64):
        add(64 * stripe, keys[stripe % 16])
        if stripe % 16 == 15:
            acc[:] = [((a ^ (a >> 47)) ^ key) * P32[0] & M64 for a, key in zip(acc, scramble, strict=True)]
    add(size - 64, keys[16])

    def merged(key, start):
        parts = (
            folded(acc[i] ^ u64(SECRET, key + 8 * i), acc[i + 1] ^ u64(SECRET, key + 8 * i + 8)) for i in (0, 2, 4, 6)
        )
        return avalanche((start + sum(parts)) & M64)

    return merged(11, size * P64[0] & M64), merged(117, ~(size * P64[1]) & M64)
