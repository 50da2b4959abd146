"""One file per optimizer, so that a table compiles only what it uses.

The file is called after the `name` of the optimizer's schema class, and is found by it. It says
what the kernel takes and what a row keeps, and it has the kernel:

    params_of(settings)        the numbers that the kernel takes as `params`, in its order
    state_of(settings, dim)    what a row keeps for a segment of `dim` floats, see `_rows.Fields`

All kernels have the same entry point:

    apply(values, starts, w, s, grads, g, dim, lr, params, step)

    values   all rows, flat
    starts   offset of each row in `values`; -1 skips the position
    w, s     offsets in a row: weights, state
    grads    [len(starts), D]; this segment is columns g .. g + dim
    lr       float32 rate of this step
    params   the settings, in the order that the kernel's docstring gives
    step     global step, below 2^48

Positions are processed in order, so a row that occurs twice takes two steps. Nothing is checked:
the caller has.

An update is a short pipeline of such entry points, run one after the other on the same arguments:
`hash_net` and `dc` come before an optimizer and replace the gradient in `grads`, which must
therefore be the caller's own copy; `rounding` comes after it and replaces the weights.

The loops over a segment take their length from an argument and index the flat arrays with unsigned
offsets; with a constant length or signed ones LLVM emits scalar square roots (10 instead of 17 M
rows/s for 16-wide adagrad).
"""
