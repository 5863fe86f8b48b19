"""A weight scheme: rules that give each module of a checkpoint its width."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from roofline.precision import Width
from roofline.quantization.names import EVERY, ModuleName, Modules, Part

LINEAR = frozenset({Part.BLOCK, Part.EXPERT})
EXPERTS = frozenset({Part.EXPERT})
LINEAR_AND_HEAD = LINEAR | {Part.HEAD}
ALL = LINEAR_AND_HEAD | {Part.EMBEDDING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Gives a width to the named modules, as far as they belong to some parts of the model."""

    width: Width | None  # None: the model's own
    parts: frozenset[Part]
    modules: Modules = EVERY

    def covers(self, module: ModuleName) -> bool:
        """Whether the module's width is this rule's."""
        return module.part in self.parts and module in self.modules


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightScheme:
    """At which width each module's weights are stored, and so at which precision they are multiplied.

    ``name`` is what a person would call it. ``kv_dtype`` is set where the checkpoint's config decides how the KV cache is
    stored: "fp8" or "nvfp4".
    """

    native: Width  # of whatever no rule covers
    name: str = "native"
    rules: tuple[Rule, ...] = ()  # the first that covers a module counts
    kv_dtype: str | None = None

    def width(self, module: str, *, is_expert: bool = False) -> Width:
        """Width of a module's weights; ``module`` as the checkpoint calls it, with the layer's number filled in.

        "{expert}" may stand for the number of a routed expert; ``is_expert`` says that it is one where the name does not.
        Norms, biases, small convolutions and routers are native in every scheme.
        """
        if not self.rules:
            return self.native
        named = ModuleName.of(module, is_expert=is_expert)
        if named.part is not Part.FIXED:
            for rule in self.rules:
                if rule.covers(named):
                    return rule.width or self.native
        return self.native


def scheme_of(native: Width, rules: Iterable[Rule], *, name: str | None = None, kv_dtype: str | None = None) -> WeightScheme:
    """A scheme of rules, the first that covers a module counts; without a name it is called after the widths that they give."""
    given = tuple(rule for rule in rules if not rule.modules.is_empty)
    widths = dict.fromkeys(
        rule.width.name + (" experts" if rule.parts == EXPERTS else "") for rule in given if rule.width is not None
    )
    return WeightScheme(native=native, name=name or " + ".join(widths) or native.name, rules=given, kv_dtype=kv_dtype)


def kept(modules: Modules) -> Rule:
    """The named modules stay in the model's own format."""
    return Rule(width=None, parts=ALL, modules=modules)
