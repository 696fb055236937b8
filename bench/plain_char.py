"""A plain character-level trainer, to measure `train.py experiment=shakespeare_char` against.

One file, one loop, nothing but torch: what the same run costs without checkpoints, metrics files,
resuming or a config. Shapes, optimizer and schedule are those of the experiment; windows are drawn
at random, as such scripts do. It prints the training loss every 10 steps and, last, a JSON line.

    python bench/plain_char.py TEXT [STEPS [SEED]]

Legend: B batch, T positions, H heads, D head width, C width, V vocabulary.
"""

import json
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

N_LAYER, N_HEAD, N_EMBD, BLOCK_SIZE, BATCH_SIZE = 4, 4, 128, 64, 12
LR, MIN_LR, WARMUP_STEPS, DECAY_STEPS = 1e-3, 1e-4, 100, 2000
BETAS, WEIGHT_DECAY, GRAD_CLIP = (0.9, 0.99), 0.1, 1.0


class Block(nn.Module):
    """Attention and MLP, each added to its normed input; (B, T, C) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(N_EMBD, bias=False)
        self.qkv = nn.Linear(N_EMBD, 3 * N_EMBD, bias=False)
        self.merge = nn.Linear(N_EMBD, N_EMBD, bias=False)
        self.norm_2 = nn.LayerNorm(N_EMBD, bias=False)
        self.widen = nn.Linear(N_EMBD, 4 * N_EMBD, bias=False)
        self.narrow = nn.Linear(4 * N_EMBD, N_EMBD, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Each position reads itself and what is before it."""
        B, T, C = x.shape
        heads = self.qkv(self.norm_1(x)).view(B, T, 3, N_HEAD, C // N_HEAD)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(read.transpose(1, 2).reshape(B, T, C))
        return x + self.narrow(F.gelu(self.widen(self.norm_2(x)), approximate="tanh"))


class Transformer(nn.Module):
    """Tokens (B, T) to logits (B, T, V)."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, N_EMBD)
        self.position = nn.Embedding(BLOCK_SIZE, N_EMBD)
        self.blocks = nn.Sequential(*(Block() for _ in range(N_LAYER)))
        self.norm = nn.LayerNorm(N_EMBD, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                residual = name.endswith(("merge.weight", "narrow.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * N_LAYER) if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the next character at each position."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.token.weight)


def loss_of(model: Transformer, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss in nats a character."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def learning_rate(step: int) -> float:
    """Linear warm-up, then a cosine to the floor; `step` counts from 0."""
    if step < WARMUP_STEPS:
        return LR * (step + 1) / (WARMUP_STEPS + 1)
    progress = min(1.0, (step - WARMUP_STEPS) / (DECAY_STEPS - WARMUP_STEPS))
    return MIN_LR + 0.5 * (1 + math.cos(math.pi * progress)) * (LR - MIN_LR)


def draw_batch(text: Tensor) -> tuple[Tensor, Tensor]:
    """Windows at random places and the same one character on, (B, T) each."""
    starts = torch.randint(len(text) - BLOCK_SIZE, (BATCH_SIZE, 1))
    places = starts + torch.arange(BLOCK_SIZE)
    return text[places], text[places + 1]


@torch.no_grad()
def validation_loss(model: Transformer, text: Tensor) -> float:
    """Mean loss over all of `text` but its last partial window, in windows that do not overlap."""
    n_windows = (len(text) - 1) // BLOCK_SIZE
    inputs = text[: n_windows * BLOCK_SIZE].view(n_windows, BLOCK_SIZE)
    targets = text[1 : n_windows * BLOCK_SIZE + 1].view(n_windows, BLOCK_SIZE)
    total = 0.0
    for first in range(0, n_windows, 256):
        part = slice(first, first + 256)
        total += loss_of(model, inputs[part], targets[part]).item() * len(inputs[part])
    return total / n_windows


def train(model: Transformer, text: Tensor, n_steps: int) -> None:
    """The plain loop."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS)
    for step in range(n_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        loss = loss_of(model, *draw_batch(text))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def main(path: str, n_steps: int = DECAY_STEPS, seed: int = 1337) -> None:
    """Train on the first nine tenths of the text, validate on the rest."""
    torch.manual_seed(seed)
    text = Path(path).read_text(encoding="utf-8")
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([alphabet[character] for character in text])
    boundary = len(tokens) * 9 // 10
    model = Transformer(len(alphabet))
    started = time.perf_counter()
    train(model, tokens[:boundary], n_steps)
    seconds = time.perf_counter() - started
    loss = validation_loss(model, tokens[boundary:])
    print(json.dumps({"steps": n_steps, "train_seconds": seconds, "val_loss": loss}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
