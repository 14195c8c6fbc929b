"""Normal random numbers that are bit-identical on every machine.

splitmix64 (Steele, Lea and Flood, OOPSLA 2014) gives 64-bit words, Box-Muller makes pairs of normals of them.
Logarithm, sine and cosine are polynomials evaluated with +, -, *, / and sqrt in float64, which IEEE 754 fixes
to the last bit; the functions of libm and of NumPy's SIMD paths differ between machines.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
CHUNK_PAIRS = 1 << 16
_MAX_THREADS = 16
_SQRT_HALF_BITS = np.float64(math.sqrt(0.5)).view(np.int64)
_LN2 = 0.6931471805599453


def _mix(words: np.ndarray, spare: np.ndarray) -> np.ndarray:
    """splitmix64's output function on uint64, in place; `spare` has their shape and is overwritten."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(words, np.uint64(shift), out=spare)
        words ^= spare
        words *= np.uint64(factor)
    np.right_shift(words, np.uint64(31), out=spare)
    words ^= spare
    return words


def words(state: int, start: int, n: int) -> np.ndarray:
    """Outputs `start` to `start + n - 1` of splitmix64 seeded with `state`: (n,) uint64."""
    counter = np.arange(start + 1, start + n + 1, dtype=np.uint64)
    counter *= np.uint64(_GOLDEN)
    counter += np.uint64(state & _MASK)
    return _mix(counter, np.empty_like(counter))


def stream_state(seed: int, name: str) -> int:
    """The splitmix64 seed of the stream called `name`: FNV-1a of the name, mixed with `seed`."""
    fnv = 0xCBF29CE484222325
    for byte in name.encode():
        fnv = ((fnv ^ byte) * 0x100000001B3) & _MASK
    return int(words(fnv ^ (seed & _MASK), 0, 1)[0])


_ATANH = tuple(2 / power for power in (15, 13, 11, 9, 7, 5, 3, 1))
_SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1))
_COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in range(7, -1, -1))


def _polynomial(x: np.ndarray, coefficients: tuple[float, ...], out: np.ndarray) -> np.ndarray:
    """Horner's rule, highest power first."""
    np.multiply(x, coefficients[0], out=out)
    for coefficient in coefficients[1:-1]:
        out += coefficient
        out *= x
    out += coefficients[-1]
    return out


class _Drawer:
    """Draws runs of pairs into memory of its own: one for each thread."""

    def __init__(self, n_pairs: int):
        self._steps = np.arange(n_pairs, dtype=np.uint64) * np.uint64(2 * _GOLDEN & _MASK)
        self._words = np.empty((2, n_pairs), np.uint64)
        self._spare = np.empty((2, n_pairs))
        self._uniform, self._a, self._b = np.empty((2, n_pairs)), np.empty(n_pairs), np.empty(n_pairs)

    def draw(self, state: int, start: int, n_pairs: int) -> tuple[np.ndarray, np.ndarray]:
        """Values `start`, `start` + 2, ... and those after them: two (n_pairs,) float64, overwritten next."""
        uniform = self._uniform[:, :n_pairs]
        pairs, spare = self._words[:, :n_pairs], self._spare[:, :n_pairs].view(np.uint64)
        for row, offset in enumerate((1, 2)):
            np.add(
                self._steps[:n_pairs], np.uint64((start + offset) * _GOLDEN + state & _MASK), out=pairs[row]
            )
        _mix(pairs, spare)
        pairs >>= np.uint64(11)
        # 53 bits fit both kinds of integer, and processors convert the signed one.
        np.copyto(uniform, pairs.view(np.int64))
        uniform[0] += 1
        uniform *= 2.0**-53
        radius = self._log(uniform[0])
        radius *= -2
        np.sqrt(radius, out=radius)
        sine, cosine = self._sine_cosine(uniform[1])
        sine *= radius
        cosine *= radius
        return cosine, sine

    def _log(self, u: np.ndarray) -> np.ndarray:
        """ln u in place, u in (0, 1]: ln m = 2 atanh((m - 1) / (m + 1)), m = u / 2^e in [0.707, 1.414)."""
        n = len(u)
        exponent, t, square = self._spare[0, :n].view(np.int64), self._a[:n], self._b[:n]
        bits = u.view(np.int64)
        np.subtract(bits, _SQRT_HALF_BITS, out=exponent)
        exponent >>= 52
        np.left_shift(exponent, 52, out=t.view(np.int64))
        bits -= t.view(np.int64)
        np.add(u, 1, out=t)
        u -= 1
        np.divide(u, t, out=t)
        np.multiply(t, t, out=square)
        _polynomial(square, _ATANH, out=u)
        u *= t
        np.multiply(exponent, _LN2, out=t)
        u += t
        return u

    def _sine_cosine(self, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of 2 pi `turns`, turns in [0, 1), in place: Taylor series within an eighth of a turn."""
        n = len(turns)
        quarter, square, cosine, spare = self._a[:n], self._b[:n], self._spare[0, :n], self._spare[1, :n]
        np.multiply(turns, 4, out=quarter)
        quarter += 0.5
        np.floor(quarter, out=quarter)
        np.multiply(quarter, 0.25, out=spare)
        turns -= spare
        turns *= 2 * math.pi
        np.multiply(turns, turns, out=square)
        turns *= _polynomial(square, _SINE, out=spare)
        _polynomial(square, _COSINE, out=cosine)
        # Sums of 2^52 and small whole numbers hold these in their last bits.
        quarter += 2.0**52
        sine_bits, cosine_bits, count, difference = (
            part.view(np.int64) for part in (turns, cosine, quarter, spare)
        )
        # In odd quarters sine and cosine change places; the sine's sign is bit 1 of the count, the
        # cosine's that of the count + 1.
        np.bitwise_xor(sine_bits, cosine_bits, out=difference)
        odd = square.view(np.int64)
        np.bitwise_and(count, 1, out=odd)
        np.negative(odd, out=odd)
        difference &= odd
        sine_bits ^= difference
        cosine_bits ^= difference
        for part in (sine_bits, cosine_bits):
            np.bitwise_and(count, 2, out=odd)
            odd <<= 62
            part ^= odd
            count += 1
        return turns, cosine


def _fill(flat: np.ndarray, state: int, start: int, mean: float, deviation: float) -> None:
    drawer = _Drawer(min(CHUNK_PAIRS, -(-flat.size // 2)))
    for begin in range(0, flat.size, 2 * CHUNK_PAIRS):
        piece = flat[begin : begin + 2 * CHUNK_PAIRS]
        for first, values in enumerate(drawer.draw(state, start + begin, -(-piece.size // 2))):
            values *= deviation
            values += mean
            to = piece[first::2]
            to[...] = values[: to.size]


def usable_threads() -> int:
    """A core stays with the control loop and the camera: an engine is replaced while they run."""
    return max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)) - 1))


def fill_normal(
    out: np.ndarray, seed: int, name: str, start: int, mean: float, deviation: float
) -> np.ndarray:
    """Fill `out` (float32, C-contiguous) with the stream `name` from value `start` on, and return it.

    Values are computed in float64 and rounded once; 2 i and 2 i + 1 come from words 2 i and 2 i + 1. Raises
    ValueError for an odd `start`.
    """
    if start % 2:
        raise ValueError(f"a stream of normals is read from an even value on, not from {start}")
    flat, state = out.reshape(-1), stream_state(seed, name)
    n_threads = min(usable_threads(), flat.size // (2 * CHUNK_PAIRS))
    if n_threads <= 1:
        _fill(flat, state, start, mean, deviation)
        return out
    # NumPy lets go of the interpreter lock in each operation.
    share = -(-flat.size // (2 * n_threads)) * 2
    with ThreadPoolExecutor(n_threads) as pool:
        shares = [
            pool.submit(_fill, flat[begin : begin + share], state, start + begin, mean, deviation)
            for begin in range(0, flat.size, share)
        ]
    for each in shares:
        each.result()
    return out
