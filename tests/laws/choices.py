"""What a model may be made of besides its sizes: each law holds for every choice."""

from typing import Any

from hypothesis import strategies as st

POSITIONS = ["learned", "sinusoidal", "rotary"]

#: Settings of `ModelConfig`, for an even head width.
choices: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "position": st.sampled_from(POSITIONS),
        "qk_norm": st.booleans(),
        "norm_order": st.sampled_from(["pre", "post"]),
        "activation": st.sampled_from(["gelu", "relu", "relu2"]),
        "bias": st.booleans(),
    }
)
