"""Drafting by bases, against drafting from one base at a time with whole sequences."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engine.training.networks import NETWORKS, Drafter, DrafterLayer, FeatureHead, NetworkShape

SHAPE = NetworkShape(
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    feed_forward_size=48,
    rope_theta=10000.0,
    norm_epsilon=1e-5,
)


def norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + SHAPE.norm_epsilon) * weight


def turn(heads: Tensor) -> Tensor:
    """Rope of [heads, positions, head_dim] from position 0 on, by complex numbers."""
    half = SHAPE.head_dim // 2
    frequencies = SHAPE.rope_theta ** -(torch.arange(half) * 2 / SHAPE.head_dim)
    angles = torch.arange(heads.shape[1])[:, None] * frequencies
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def layer_by_hand(layer: DrafterLayer, hidden: Tensor) -> Tensor:
    """A Llama layer over [positions, hidden], causal."""
    weights = {name: weight.detach() for name, weight in layer.named_parameters()}
    normed = norm(hidden, weights["input_layernorm.weight"])

    def heads(name: str, count: int) -> Tensor:
        return (normed @ weights[f"self_attn.{name}.weight"].T).view(len(hidden), count, -1).transpose(0, 1)

    queries, keys = turn(heads("q_proj", 4)), turn(heads("k_proj", 2)).repeat_interleave(2, 0)
    values = heads("v_proj", 2).repeat_interleave(2, 0)
    attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    hidden = hidden + attended.transpose(0, 1).reshape(len(hidden), -1) @ weights["self_attn.o_proj.weight"].T
    normed = norm(hidden, weights["post_attention_layernorm.weight"])
    gated = functional.silu(normed @ weights["mlp.gate_proj.weight"].T) * (normed @ weights["mlp.up_proj.weight"].T)
    return hidden + gated @ weights["mlp.down_proj.weight"].T


def draft_by_hand(drafter: Drafter, embedded: Tensor, features: Tensor, base: int, steps: int) -> list[Tensor]:
    """The estimates of the draft from `base`: one whole pass for each step, over what it then knows.

    `embedded` [positions, hidden] holds the tokens that are drafted as well; `features` the target's.
    """
    known = torch.cat([torch.zeros(1, SHAPE.hidden_size), features[:base]])
    estimates: list[Tensor] = []
    for step in range(steps):
        inputs = embedded[: base + step + 1]
        if isinstance(drafter, FeatureHead):
            embedding_weight, feature_weight = drafter.embedding_norm.weight, drafter.feature_norm.weight
            both = torch.cat([norm(inputs, embedding_weight), norm(known, feature_weight)], -1)
            hidden = both @ drafter.fc.weight.T
        else:
            hidden = inputs
        for layer in drafter.layers:
            assert isinstance(layer, DrafterLayer)
            hidden = layer_by_hand(layer, hidden)
        estimates.append(norm(hidden, drafter.norm.weight)[-1])
        known = torch.cat([known, estimates[-1][None]])
    return estimates


@pytest.mark.parametrize("kind", ["feature_head", "draft_model"])
def test_drafting_by_bases_is_drafting_from_each_base_alone(kind: str) -> None:
    torch.manual_seed(0)
    drafter = NETWORKS[kind](SHAPE)
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.15)
    positions, steps = 12, 4
    generator = torch.Generator().manual_seed(1)
    embedded = torch.randn(positions + steps, SHAPE.hidden_size, generator=generator)
    features = torch.randn(positions, SHAPE.hidden_size, generator=generator)
    cache = drafter.new_cache()
    estimated = torch.cat([torch.zeros(1, SHAPE.hidden_size), features[:-1]])[None]
    by_bases = []
    with torch.no_grad():
        for step in range(1, steps + 1):
            tokens = embedded[step - 1 : step - 1 + positions][None]
            with torch.autocast("cpu", torch.bfloat16):
                estimated = drafter.step(tokens, estimated, step, cache)
            by_bases.append(estimated[0])
        for base in range(positions):
            alone = draft_by_hand(drafter, embedded, features, base, steps)
            for step in range(steps):
                # the products are in bfloat16
                torch.testing.assert_close(by_bases[step][base], alone[step], rtol=0.05, atol=0.08)


def test_the_tensor_names_are_those_of_the_contract() -> None:
    layer = {
        *("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight"),
        *("input_layernorm.weight", "post_attention_layernorm.weight"),
        *("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"),
    }
    layers = {f"layers.{index}.{name}" for index in range(2) for name in layer} | {"norm.weight"}
    assert set(NETWORKS["draft_model"](SHAPE).state_dict()) == layers
    head = {"fc.weight", "embedding_norm.weight", "feature_norm.weight"}
    assert set(NETWORKS["feature_head"](SHAPE).state_dict()) == layers | head
