"""Naive twins of the initializers, compressors and retrievers: NumPy, written from the formulas."""

import numpy as np

F = np.float32
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    """The splitmix64 finalizer on Python integers."""
    x &= MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def scale_draw(draw, minval, maxval):
    """Monolith's map from a 32-bit draw to [minval, maxval)."""
    share = F(draw) / F(2**32)
    share = np.nextafter(F(1), F(0)) if share == 1 else share
    return share * (F(maxval) - F(minval)) + F(minval)


def uniform_row(key, seed, w, dim, minval, maxval):
    stream = mix((key & MASK) ^ mix(seed + GOLDEN))
    draws = [mix(stream + GOLDEN * (w + j + 1)) >> 32 for j in range(dim)]
    return np.array([scale_draw(draw, minval, maxval) for draw in draws], F)


def fixed_r8(values, r):
    """Quantized integers, halves away from zero."""
    spacing = F(r) / F(128)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.trunc(
            (values + np.where(values >= 0, F(1), F(-1)) * (spacing / F(2))) / spacing
        )
    return np.where(np.isnan(values), F(0), np.clip(scaled, -128, 127)).astype(np.int8)


def stored_bytes(name, values, r=1.0):
    """The bytes of [n, d] values under a compressor."""
    with np.errstate(over="ignore"):
        encoded = {
            "fp32": lambda: values.astype("<f4"),
            "fp16": lambda: values.astype("<f2"),
            "fixed_r8": lambda: fixed_r8(values, r),
            "one_bit": lambda: np.where(values > 0, 1, -1).astype(np.int8),
        }[name]()
    return np.ascontiguousarray(encoded).view(np.uint8).reshape(len(values), -1)
