"""Attention of a few queries over a long static cache, in the ways that torch has; the fastest is taken."""

import math
from collections.abc import Callable
from functools import cache, partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as sdpa

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(T, heads, head) queries, (KV heads, n, head) keys and values of which the last T are the queries' own;
returns (T, heads * head)."""

MAX_ERROR = 2e-2
"""Relative L2 difference from the plain products in float32: beyond bf16's it is another function."""


@cache
def lower_right(
    n_queries: int, n_keys: int, repeats: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """(repeats * n_queries, n_keys): 0 where one of the last queries sees a key, else minus infinity.

    Made once: a peer is not to be charged for it in every layer.
    """
    hidden = torch.full((n_queries, n_keys), -math.inf, dtype=dtype, device=device)
    return hidden.triu(n_keys - n_queries + 1).repeat(repeats, 1)


def products(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Two matrix products and a softmax; a KV head's query heads are rows of one product."""
    rows, bias = _fold(q, keys)
    rows, columns = rows / math.sqrt(q.shape[-1]), keys.transpose(1, 2)
    scores = torch.bmm(rows, columns) if bias is None else torch.baddbmm(bias, rows, columns)
    return _unfold(torch.softmax(scores, -1) @ values, q)


def folded(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A KV head's query heads as further queries, so that its keys are read once."""
    rows, bias = _fold(q, keys)
    return _unfold(sdpa(rows[None], keys[None], values[None], attn_mask=bias)[0], q)


def grouped(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Grouped-query attention as torch has it; causal from the lower right without a mask in memory."""
    bias = None if len(q) == 1 else causal_lower_right(len(q), keys.shape[1])
    out = sdpa(q.transpose(0, 1)[None], keys[None], values[None], attn_mask=bias, enable_gqa=True)
    return out[0].transpose(0, 1).reshape(len(q), -1)


def _with_backend(backend: SDPBackend, attend: Attention, *arguments: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(backend):
        return attend(*arguments)


WAYS: dict[str, Attention] = {
    "products": products,
    **{
        f"{attend.__name__}, {backend.name.removesuffix('_ATTENTION').lower()}": partial(
            _with_backend, backend, attend
        )
        for attend in (folded, grouped)
        for backend in (
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
        )
    },
}


def fastest(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seconds: Callable[[Callable[[], torch.Tensor]], float],
) -> tuple[str, dict[str, float]]:
    """The name of the fastest of WAYS for these shapes, and the times (`seconds(run)`) of all that work.

    A way that torch refuses for these shapes, or that computes something else, is left out.
    """
    exact = products(q.float(), keys.float(), values.float())
    times = {}
    for name, attend in WAYS.items():
        run = partial(attend, q, keys, values)
        try:
            error = torch.linalg.vector_norm(run().float() - exact) / torch.linalg.vector_norm(exact)
            if error < MAX_ERROR:
                times[name] = seconds(run)
        except RuntimeError:
            continue
    return min(times, key=times.__getitem__), times


def _fold(q: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(KV heads, group * T, head) rows, and what is added to their scores where something is."""
    n_queries, heads, head = q.shape
    n_kv = len(keys)
    rows = q.reshape(n_queries, n_kv, heads // n_kv, head).permute(1, 2, 0, 3).reshape(n_kv, -1, head)
    if n_queries == 1:
        return rows, None
    return rows, lower_right(n_queries, keys.shape[1], heads // n_kv, q.dtype, q.device)


def _unfold(rows: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    n_queries, heads, head = q.shape
    by_head = rows.reshape(len(rows), -1, n_queries, head)
    return by_head.permute(2, 0, 1, 3).reshape(n_queries, heads * head)
