"""Shuffles that need no list: where each of n things goes is worked out by itself (docs/shards.md, "Shuffles").

A balanced-or-nearly Feistel network over the least power of two that is not below n, and once more over what lies
outside of n. The same on every machine and in every version: a checkpoint relies on it.
"""

_ROUNDS = 6
_MASK = (1 << 64) - 1


def _mixed(x):
    """splitmix64's output function."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Permutation:
    """Of range(n): `Permutation(n, seed, epoch)(i)` is where i goes."""

    def __init__(self, n, seed, epoch):
        self._n = n
        bits = max(2, (n - 1).bit_length())
        self._low_bits = bits // 2
        self._low_mask = (1 << self._low_bits) - 1
        self._high_mask = (1 << (bits - self._low_bits)) - 1
        key = _mixed(_mixed(seed & _MASK) ^ epoch)
        self._keys = [_mixed(key + number) for number in range(_ROUNDS)]

    def __call__(self, i):
        if not 0 <= i < self._n:
            raise IndexError(f"{i}: expected 0 to {self._n - 1}")
        while True:
            high, low = i >> self._low_bits, i & self._low_mask
            for number in range(0, _ROUNDS, 2):
                high ^= _mixed(self._keys[number] ^ low) & self._high_mask
                low ^= _mixed(self._keys[number + 1] ^ high) & self._low_mask
            i = high << self._low_bits | low
            if i < self._n:
                return i
