"""Weights of feed-forward parts: dense, and mixtures of experts with shared ones."""

from __future__ import annotations

from roofline.models.families import Family
from roofline.models.fields import ConfigFields
from roofline.models.part import Part, has_bias, matrices, module
from roofline.shape import Experts, Matrix, WeightKind


def dense_part(fields: ConfigFields, family: Family) -> Part:
    """A feed-forward part that every token passes."""
    hidden, size, each = fields.count("hidden_size"), _dense_size(fields, family), _matrices_each(fields, family)
    path = module(family.names.layer, family.names.ffn)
    has_biases = has_bias(fields, family.ffn_bias)
    return Part(
        matrices=(
            *_inward(path, family.names.ffn_in, WeightKind.FFN, hidden * size, each),
            *matrices(path, (family.names.ffn_out,), WeightKind.FFN, (size * hidden,)),
        ),
        vector_parameters=(each - 1) * size + hidden if has_biases else 0,
    )


def experts_part(fields: ConfigFields, family: Family) -> Part:
    """Router, routed and shared experts of one layer. Biases of routed experts are of their kind: they are read with them.

    ``ValueError`` if a token is to pass more experts than there are.
    """
    fields.require("top_k")
    hidden, count, chosen = fields.count("hidden_size"), fields.count("experts"), fields.count("top_k")
    if chosen > count:
        raise fields.refuse(f"{chosen} experts per token are more than the {count} there are")
    size = fields.optional_count("expert_ffn_size") or fields.count("ffn_size")
    latent = fields.optional_count("moe_latent_size")  # Nemotron 3: routed experts work on a shorter vector
    width, each, names = latent or hidden, _matrices_each(fields, family), family.names
    path = module(names.layer, names.expert)
    weights = [
        *matrices(names.layer, (names.router,), WeightKind.ROUTER, (hidden * count,)),
        *_inward(path, names.expert_in, WeightKind.EXPERT, count * width * size, each),
        *matrices(path, (names.expert_out,), WeightKind.EXPERT, (count * size * width,)),
    ]
    if family.has_expert_bias:
        weights += matrices(path, ("bias",), WeightKind.EXPERT, (count * ((each - 1) * size + width),))
    if latent is not None:
        latents = (hidden * latent, latent * hidden)
        path = module(names.layer, names.ffn)
        weights += matrices(path, ("fc1_latent_proj", "fc2_latent_proj"), WeightKind.SHARED_EXPERT, latents)
    weights += _shared(fields, family, size, each)
    vectors = count * (_has_score_bias(fields, family) + family.has_expert_bias)
    if fields.flag("enable_moe_block", False):  # Gemma 4: a dense part beside the experts, more norms, a router with scales
        dense = dense_part(fields, family)
        weights += dense.matrices
        vectors += dense.vector_parameters + 4 * hidden + count
    return Part(matrices=tuple(weights), vector_parameters=vectors, experts=Experts(count=count, chosen=chosen))


def _shared(fields: ConfigFields, family: Family, expert_size: int, each: int) -> tuple[Matrix, ...]:
    hidden, names = fields.count("hidden_size"), family.names
    size = fields.amount("shared_ffn_size") or fields.amount("shared_experts", family.shared_experts) * expert_size
    if not size:
        return ()
    path = module(names.layer, names.shared)
    gate = (Matrix(module=path + "_gate", kind=WeightKind.SHARED_EXPERT, parameters=hidden),) if family.has_shared_gate else ()
    return (
        *_inward(path, names.shared_in, WeightKind.SHARED_EXPERT, hidden * size, each),
        *matrices(path, (names.shared_out,), WeightKind.SHARED_EXPERT, (size * hidden,)),
        *gate,
    )


def _inward(path: str, names: tuple[str, ...], kind: WeightKind, size: int, each: int) -> tuple[Matrix, ...]:
    """The matrices before the activation: two with a gate, else one."""
    times = each - 1
    return matrices(path, names[-times:], kind, (size,) * times)


def _dense_size(fields: ConfigFields, family: Family) -> int:
    if fields.has("dense_ffn_size"):
        return fields.count("dense_ffn_size")
    if not fields.amount("experts") and fields.amount("shared_ffn_size"):  # Granite 4: only the shared part is left
        return fields.count("shared_ffn_size")
    if family.ffn_multiple is not None and not fields.has("ffn_size"):
        return fields.count_or("expansion_ratio", family.ffn_multiple) * fields.count("hidden_size")
    return fields.count("ffn_size") // family.ffn_divisor


def _matrices_each(fields: ConfigFields, family: Family) -> int:
    """2 or 3 for each expert or dense part; a squared ReLU has no gate."""
    return 2 if fields.text("activation") == "relu2" else family.ffn_matrices


def _has_score_bias(fields: ConfigFields, family: Family) -> bool:
    """Whether the router has a correction for each expert's score, which checkpoints carry."""
    method = fields.text("topk_method")
    default = family.has_score_bias if method is None else method == "noaux_tc"
    return fields.flag("use_routing_bias", default)
