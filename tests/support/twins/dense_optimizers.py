"""Naive twins of the dense optimizers, in float64, written from the formulas and nothing else.

Each takes its settings, the value, the state by field name, a gradient, the rate and the step, and
returns the new value and state.
"""

import numpy as np


def sgd(c, w, st, g, lr, step):
    return w - lr * g, {}


def momentum(c, w, st, g, lr, step):
    n = c.momentum * st["n"] - lr * (g + c.weight_decay_factor * w)
    moved = (1 + c.momentum) * n - c.momentum * st["n"] if c.use_nesterov else n
    return w + moved, {"n": n}


def adagrad(c, w, st, g, lr, step):
    g = g + c.weight_decay_factor * w
    norm = st["norm"] + g**2
    return w - lr * g / np.sqrt(norm), {"norm": norm}


def adam(c, w, st, g, lr, step):
    g = g + c.weight_decay_factor * w
    m = c.beta1 * st["m"] + (1 - c.beta1) * g
    v = c.beta2 * st["v"] + (1 - c.beta2) * g**2
    rate = lr * np.sqrt(1 - st["beta2_power"]) / (1 - st["beta1_power"])
    along = (1 - c.beta1) * g + c.beta1 * m if c.use_nesterov else m
    powers = {
        "beta1_power": st["beta1_power"] * c.beta1,
        "beta2_power": st["beta2_power"] * c.beta2,
    }
    return w - rate * along / (np.sqrt(v) + c.epsilon), {"m": m, "v": v, **powers}


def adamom(c, w, st, g, lr, step):
    g = g + c.weight_decay * w
    m = c.mom_decay * st["m"] + (1 - c.mom_decay) * g
    v = c.ada_decay * st["v"] + g**2
    count = c.ada_decay * st["c"] + 1
    return w - lr * m / np.sqrt(v / count + c.epsilon), {"m": m, "v": v, "c": count}


def dense_rmsprop(c, w, st, g, lr, step):
    g = g + c.weight_decay * w
    v = c.beta2 * st["v"] + (1 - c.beta2) * g**2
    m = c.beta1 * st["m"] + lr * g / np.sqrt(v + c.epsilon)
    return w - m, {"m": m, "v": v}


def dense_rmspropv2(c, w, st, g, lr, step):
    g = g + c.weight_decay * w
    v = c.beta2 * st["v"] + g**2
    m = c.beta1 * st["m"] + lr * g / (np.sqrt(v) + c.epsilon)
    return w - m, {"m": m, "v": v}


class Shampoo:
    """Dense matrices for the preconditioners and einsum for the contractions.

    Consecutive steps only.
    """

    def __init__(self, settings, value):
        self.c, self.value = settings, np.array(value, np.float64)
        self.samples = [np.zeros((n, n)) for n in value.shape]
        self.statistics = [np.zeros((n, n)) for n in value.shape]
        self.roots = [np.zeros((n, n)) for n in value.shape]
        self.d, self.m, self.pm = (np.zeros(value.shape) for _ in range(3))

    def step(self, g, lr, t):
        c, rank = self.c, g.ndim
        letters = "abcdef"[:rank]
        x = g
        for i in range(rank):
            if t % c.tau_2 == 0:
                other = letters.replace(letters[i], "z")
                self.samples[i] = np.einsum(f"{letters},{other}->{letters[i]}z", g, g)
            if c.beta_2 < 1 - 1e-10:
                self.statistics[i] = (
                    c.beta_2 * self.statistics[i] + (1 - c.beta_2) * self.samples[i]
                )
            else:
                self.statistics[i] = self.statistics[i] + self.samples[i]
            if t > c.warmup and t % c.tau_1 == 0:
                self.roots[i] = inverse_root(self.statistics[i], 2 * rank, c)
            x = np.einsum(
                f"{letters},{letters[i]}z->{letters.replace(letters[i], 'z')}", x, self.roots[i]
            )
        self.d += g**2
        self.m = c.beta_1 * self.m + (1 - c.beta_1) * g / np.sqrt(self.d + 1e-30)
        self.pm = c.beta_1 * self.pm + (1 - c.beta_1) * x
        plain = lr * self.m
        moved = lr * np.sqrt((self.m**2).sum()) / (np.sqrt((self.pm**2).sum()) + 1e-10) * self.pm
        blend = min(max(t / c.warmup - 1, 0), 1)
        self.value -= (1 - blend) * plain + blend * moved if t > c.warmup else plain


def inverse_root(matrix, power, c):
    """The whole matrix: kept eigenvalues with their power, all others with the mean power of those
    between."""
    size, head, tail = len(matrix), c.eigen_head, c.eigen_tail
    eigenvalues, vectors = np.linalg.eigh(matrix)
    powers = np.maximum(eigenvalues, c.damping_epsilon) ** (-1 / power)
    if head + tail > size:
        return (vectors * powers) @ vectors.T
    above = np.flatnonzero(eigenvalues > c.damping_epsilon)
    first = min(above[0] if above.size else 0, size - head - tail)
    between = powers[first + head : size - tail]
    filled = np.full(size, between.mean() if between.size else 0.0)
    for place in [*range(first, first + head), *range(size - tail, size)]:
        filled[place] = powers[place]
    return (vectors * filled) @ vectors.T
