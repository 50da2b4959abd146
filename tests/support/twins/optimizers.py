"""Naive twins of the optimizer kernels: one row, NumPy float32, written from the formulas and
nothing else.

Each takes its settings, the weights, the state by field name, a gradient, the rate and the step,
and returns the new weights and state. `run` drives them over a batch the way a table would.
"""

import numpy as np

from megalith.schema import optimizers as o

F = np.float32


def sgd(c, w, st, g, lr, step):
    return w - lr * g, {}


def adagrad(c, w, st, g, lr, step):
    g = g + F(c.weight_decay_factor) * w
    norm = st["norm"] + g * g
    return w - lr / np.sqrt(norm) * g, {"norm": norm}


def dynamic_wd_adagrad(c, w, st, g, lr, step):
    last, decay = st["last_update_step"], F(c.weight_decay_factor)
    if c.enable_dynamic_wd and last >= 0:
        sign = -1 if c.flip_direction else 1
        decay = decay * F(max(step - last, 1)) ** F(sign / c.dynamic_wd_temperature)
    g2 = g if c.decouple_weight_decay else g + decay * w
    norm = st["norm"] + g2 * g2
    update = lr / np.sqrt(norm) * g2
    if c.decouple_weight_decay:
        update = update + min(lr * decay, F(1)) * w
    return w - update, {"norm": norm, "last_update_step": step}


def _leader(st, w, g, lr):
    norm = st["norm"] + g * g
    sigma = (np.sqrt(norm) - np.sqrt(st["norm"])) / lr
    return norm, st["zero"] + (g - sigma * w)


def ftrl(c, w, st, g, lr, step):
    if lr == 0:
        return w, st
    norm, zero = _leader(st, w, g, lr)
    l1, l2, beta = F(c.l1_regularization_strength), F(c.l2_regularization_strength), F(c.beta)
    sign = np.signbit(zero).astype(F) if c.sign_bit_l1 else np.sign(zero)
    with np.errstate(invalid="ignore", divide="ignore"):
        moved = lr * (sign * l1 - zero) / (np.sqrt(norm) + beta + l2 * lr)
    return np.where(np.abs(zero) <= l1, F(0), moved), {"norm": norm, "zero": zero}


def group_ftrl(c, w, st, g, lr, step):
    if lr == 0:
        return w, st
    norm, zero = _leader(st, w, g, lr)
    l1, l2, beta = F(c.l1_regularization_strength), F(c.l2_regularization_strength), F(c.beta)
    length = np.sqrt(np.sum(zero * zero, dtype=F))
    state = {"norm": norm, "zero": zero}
    if length == 0 or length < l1:
        return np.zeros_like(w), state
    divisor = beta + np.sqrt(norm) + l2 * lr
    moved = lr * zero * ((l1 - length) / length) / np.where(divisor == 0, F(1), divisor)
    return moved, state


def group_adagrad(c, w, st, g, lr, step):
    if lr == 0:
        return w, st
    g = g + F(c.weight_decay_factor) * w
    total = st["grad_square_sum"] + np.max(g * g)
    state = {"grad_square_sum": total}
    if c.beta == 0 and total[0] == 0:
        return w, state
    rate = lr / (F(c.beta) + np.sqrt(total))
    z = g - w / rate
    length, l2 = np.sqrt(np.sum(z * z, dtype=F)), F(c.l2_regularization_strength)
    if length == 0 or length < l2:
        return np.zeros_like(w), state
    return -rate * (length - l2) / length * z, state


def adadelta(c, w, st, g, lr, step):
    r, e = F(c.averaging_ratio), F(c.epsilon)
    g = g + F(c.weight_decay_factor) * w
    accum = st["accum"] * r + g * g * (1 - r)
    u = np.sqrt(st["accum_update"] + e) / np.sqrt(accum + e) * g
    return w - u * lr, {"accum": accum, "accum_update": st["accum_update"] * r + u * u * (1 - r)}


def _moments(c, w, st, g):
    beta1, beta2 = F(c.beta1), F(c.beta2)
    g = g + F(c.weight_decay_factor) * w
    m = st["m"] + (g - st["m"]) * (1 - beta1)
    v = st["v"] + (g * g - st["v"]) * (1 - beta2)
    powers = {"beta1_power": st["beta1_power"] * beta1, "beta2_power": st["beta2_power"] * beta2}
    return g * (1 - beta1) + beta1 * m if c.use_nesterov else m, {"m": m, "v": v, **powers}


def _corrected(st, lr):
    return lr * np.sqrt(1 - st["beta2_power"]) / (1 - st["beta1_power"])


def adam(c, w, st, g, lr, step):
    direction, state = _moments(c, w, st, g)
    return w - direction * _corrected(st, lr) / (np.sqrt(state["v"]) + F(c.epsilon)), state


def amsgrad(c, w, st, g, lr, step):
    direction, state = _moments(c, w, st, g)
    state["vhat"] = np.maximum(st["vhat"], state["v"])
    return w - direction * _corrected(st, lr) / (np.sqrt(state["vhat"]) + F(c.epsilon)), state


def momentum(c, w, st, g, lr, step):
    k = F(c.momentum)
    n = k * st["n"] - lr * (g + F(c.weight_decay_factor) * w)
    return w + (-k * st["n"] + (1 + k) * n if c.use_nesterov else n), {"n": n}


def moving_average(c, w, st, g, lr, step):
    return F(c.momentum) * w + (1 - F(c.momentum)) * g, {}


def batch_softmax(c, w, st, g, lr, step):
    return (1 - lr) * w + lr * F(step - st["last_step"]), {"last_step": step}


def _rms(c, w, st, g, lr, share):
    g = g.astype(np.float64) + np.float64(F(c.weight_decay_factor)) * w
    n = (np.float64(F(c.momentum)) * st["n"] + share * g * g).astype(F)
    return (w - np.float64(lr) / (np.sqrt(n) + F(1)).astype(np.float64) * g).astype(F), {"n": n}


def rmsprop(c, w, st, g, lr, step):
    return _rms(c, w, st, g, lr, 1 - np.float64(F(c.momentum)))


def rmspropv2(c, w, st, g, lr, step):
    return _rms(c, w, st, g, lr, 1.0)


STEP_OF = {
    o.Sgd: sgd,
    o.Adagrad: adagrad,
    o.DynamicWdAdagrad: dynamic_wd_adagrad,
    o.Ftrl: ftrl,
    o.GroupFtrl: group_ftrl,
    o.GroupAdagrad: group_adagrad,
    o.Adadelta: adadelta,
    o.Adam: adam,
    o.Amsgrad: amsgrad,
    o.Momentum: momentum,
    o.MovingAverage: moving_average,
    o.BatchSoftmax: batch_softmax,
    o.Rmsprop: rmsprop,
    o.RmspropV2: rmspropv2,
}


def run(config, weights, states, rows, grads, lr, step):
    """Apply grads[i] to row rows[i], in order, -1 being skipped; returns new weights and states."""
    weights, states = weights.copy(), {name: values.copy() for name, values in states.items()}
    for row, gradient in zip(rows, grads, strict=True):
        if row >= 0:
            state = {name: values[row] for name, values in states.items()}
            weights[row], new = STEP_OF[type(config)](
                config, weights[row], state, gradient, F(lr), step
            )
            for name, value in new.items():
                states[name][row] = value
    return weights, states


def half_candidates(w):
    """The largest half that is not above w and the smallest that is not below it."""
    with np.errstate(over="ignore"):
        nearest = np.float16(w)
    if F(nearest) == w:
        return F(w), F(w)
    neighbour = np.nextafter(nearest, np.float16(np.inf if F(nearest) < w else -np.inf))
    return tuple(sorted((F(nearest), F(neighbour))))


def multiply_with_carry(count):
    """Monolith's random numbers in [0, 1): a pair of generators of which one is stuck at zero."""
    b, out = 1, []
    for _ in range(count):
        b = (18000 * (b & 0xFFFF) + (b >> 16)) % 2**32
        out.append(F(b) / F(2**32))
    return out
