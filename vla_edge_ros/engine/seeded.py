"""Normal random numbers that are bit-identical on every machine.

splitmix64 (Steele, Lea and Flood, OOPSLA 2014) gives 64-bit words, Box-Muller makes pairs of normals of them.
Logarithm, sine and cosine are polynomials evaluated with +, -, *, / and sqrt in float64, which IEEE 754 fixes
to the last bit; the functions of libm and of NumPy's SIMD paths differ between machines.
"""

import math

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_CHUNK_PAIRS = 1 << 15
_SQRT_HALF = math.sqrt(0.5)
_LN2 = 0.6931471805599453


def _mix(words: np.ndarray) -> np.ndarray:
    """splitmix64's output function on (n,) uint64, in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words


def words(state: int, start: int, n: int) -> np.ndarray:
    """Outputs `start` to `start + n - 1` of splitmix64 seeded with `state`: (n,) uint64."""
    counter = np.arange(start + 1, start + n + 1, dtype=np.uint64)
    counter *= np.uint64(_GOLDEN)
    counter += np.uint64(state & _MASK)
    return _mix(counter)


def stream_state(seed: int, name: str) -> int:
    """The splitmix64 seed of the stream called `name`: FNV-1a of the name, mixed with `seed`."""
    fnv = 0xCBF29CE484222325
    for byte in name.encode():
        fnv = ((fnv ^ byte) * 0x100000001B3) & _MASK
    return int(words(fnv ^ (seed & _MASK), 0, 1)[0])


def _polynomial(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    """Horner's rule, highest power first."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += coefficient
    return value


_ATANH = tuple(2 / power for power in (15, 13, 11, 9, 7, 5, 3, 1))
_SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1))
_COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in range(7, -1, -1))


def _log(u: np.ndarray) -> np.ndarray:
    """Natural logarithm of u in (0, 1]: ln m = 2 atanh((m - 1) / (m + 1)), m in [sqrt(1/2), sqrt(2))."""
    mantissa, exponent = np.frexp(u)
    low = mantissa < _SQRT_HALF
    mantissa[low] *= 2
    exponent = exponent.astype(np.float64) - low
    t = (mantissa - 1) / (mantissa + 1)
    return t * _polynomial(t * t, _ATANH) + exponent * _LN2


def _sine_cosine(turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sine and cosine of 2 pi `turns`, turns in [0, 1): Taylor series within an eighth of a turn."""
    quarter = np.floor(turns * 4 + 0.5)
    angle = (turns - quarter * 0.25) * (2 * math.pi)
    square = angle * angle
    sine = angle * _polynomial(square, _SINE)
    cosine = _polynomial(square, _COSINE)
    quarter = quarter.astype(np.int64) & 3
    is_swapped = (quarter & 1) == 1
    swapped_sine = np.where(is_swapped, cosine, sine)
    swapped_cosine = np.where(is_swapped, sine, cosine)
    return (
        np.where(quarter >= 2, -swapped_sine, swapped_sine),
        np.where((quarter == 1) | (quarter == 2), -swapped_cosine, swapped_cosine),
    )


def fill_normal(
    out: np.ndarray, seed: int, name: str, start: int, mean: float, deviation: float
) -> np.ndarray:
    """Fill `out` (float32, C-contiguous) with the stream `name` from value `start` on, and return it.

    Values are computed in float64 and rounded once; 2 i and 2 i + 1 come from words 2 i and 2 i + 1. Raises
    ValueError for an odd `start`.
    """
    if start % 2:
        raise ValueError(f"a stream of normals is read from an even value on, not from {start}")
    flat = out.reshape(-1)
    state = stream_state(seed, name)
    for begin in range(0, flat.size, 2 * _CHUNK_PAIRS):
        n = min(2 * _CHUNK_PAIRS, flat.size - begin)
        pair = words(state, start + begin, n + n % 2) >> np.uint64(11)
        radius = np.sqrt(-2 * _log((pair[0::2].astype(np.float64) + 1) * 2.0**-53))
        sine, cosine = _sine_cosine(pair[1::2].astype(np.float64) * 2.0**-53)
        normal = np.empty(n + n % 2)
        normal[0::2] = radius * cosine
        normal[1::2] = radius * sine
        flat[begin : begin + n] = (normal[:n] * deviation + mean).astype(np.float32)
    return out
