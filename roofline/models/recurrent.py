"""Weights and state of layers that keep a state of fixed size: gated delta net (linear attention) and Mamba.

FLOP are those of the recurrence, one token after another, the least there is; prefill kernels work in chunks and do more.
"""

from __future__ import annotations

from roofline.models.families import Family
from roofline.models.fields import ConfigFields
from roofline.models.part import Part, matrices, module
from roofline.shape import Recurrence, WeightKind


def delta_net_part(fields: ConfigFields, family: Family) -> Part:
    """A gated delta net (Qwen3-Next, Qwen3.5): per value head a matrix of key dimension x value dimension.

    Each token costs three multiply-adds for every number of it: what it holds for the key is read, corrected by a product of
    rank one, and read for the query.
    """
    fields.require("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    hidden = fields.count("hidden_size")
    value_heads = fields.count("linear_num_value_heads")
    keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
    values = value_heads * fields.count("linear_value_head_dim")
    kernel = fields.count("linear_conv_kernel_dim")
    mixed = 2 * keys + values  # queries, keys and values pass the convolution
    state = value_heads * fields.count("linear_key_head_dim") * fields.count("linear_value_head_dim")
    names = family.names.linear_in
    rows = (mixed + values, 2 * value_heads) if len(names) == 2 else (mixed, values, value_heads, value_heads)
    path = module(family.names.layer, family.names.linear)
    return Part(
        matrices=(
            *matrices(path, names, WeightKind.MIXER, tuple(hidden * count for count in rows)),
            *matrices(path, ("out_proj",), WeightKind.MIXER, (values * hidden,)),
        ),
        # convolution, A_log and dt_bias, norm
        vector_parameters=mixed * kernel + 2 * value_heads + fields.count("linear_value_head_dim"),
        mixer=Recurrence(state_elements=state, convolution_elements=mixed * (kernel - 1), flop_per_token=6.0 * state),
    )


def mamba_part(fields: ConfigFields, family: Family) -> Part:
    """A Mamba block: the first kind if the config has a dt rank, else the second.

    Each token costs two multiply-adds for every number of the state: the update, and the read.
    """
    return _mamba_1(fields, family) if fields.has("mamba_dt_rank") else _mamba_2(fields, family)


def _mamba_2(fields: ConfigFields, family: Family) -> Part:
    fields.require("mamba_heads", "mamba_head_dim", "mamba_state", "mamba_kernel")
    hidden, heads = fields.count("hidden_size"), fields.count("mamba_heads")
    inner = heads * fields.count("mamba_head_dim")
    state, kernel = fields.count("mamba_state"), fields.count("mamba_kernel")
    mixed = inner + 2 * fields.count_or("mamba_groups", 1) * state  # what passes the convolution
    rows = inner + mixed + heads
    vectors = mixed * (kernel + fields.flag("mamba_conv_bias", True))
    vectors += 3 * heads + inner  # dt_bias, A_log and D; norm
    vectors += rows + hidden if fields.flag("mamba_bias", False) else 0
    elements = inner * state
    path = module(family.names.layer, family.names.mamba)
    return Part(
        matrices=matrices(path, ("in_proj", "out_proj"), WeightKind.MIXER, (hidden * rows, inner * hidden)),
        vector_parameters=vectors,
        mixer=Recurrence(state_elements=elements, convolution_elements=mixed * (kernel - 1), flop_per_token=4.0 * elements),
    )


def _mamba_1(fields: ConfigFields, family: Family) -> Part:
    """Jamba, which also norms the step size and both projections of the state."""
    fields.require("mamba_state", "mamba_kernel", "mamba_expand", "mamba_dt_rank")
    hidden = fields.count("hidden_size")
    inner = fields.count("mamba_expand") * hidden
    state, kernel, rank = (fields.count(field) for field in ("mamba_state", "mamba_kernel", "mamba_dt_rank"))
    vectors = inner * (kernel + fields.flag("mamba_conv_bias", True))
    vectors += inner * (state + 2)  # A_log, D, bias of dt_proj
    vectors += rank + 2 * state  # norms
    vectors += 2 * inner + hidden if fields.flag("mamba_bias", False) else 0
    elements = inner * state
    return Part(
        matrices=matrices(
            module(family.names.layer, family.names.mamba),
            ("in_proj", "x_proj", "dt_proj", "out_proj"),
            WeightKind.MIXER,
            (hidden * 2 * inner, inner * (rank + 2 * state), rank * inner, inner * hidden),
        ),
        vector_parameters=vectors,
        mixer=Recurrence(state_elements=elements, convolution_elements=inner * (kernel - 1), flop_per_token=4.0 * elements),
    )
