"""The checks in their order, and how they are run.

The order is that in which a fault is looked for: what the model is given, then attention from the
inside out, then what is built on it. A fault shows in several checks; the first to fail names it.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from minigpt.doctor.attention_checks import (
    look_at_causality,
    look_at_order,
    look_at_padding,
    look_at_paths,
    look_at_repeat,
    look_at_rows,
)
from minigpt.doctor.cache_check import look_at_cache, look_at_step
from minigpt.doctor.composition import look_at_composition
from minigpt.doctor.finding import Check, Finding, Subject
from minigpt.doctor.formula import look_at_formula
from minigpt.doctor.length_curve import observe_lengths
from minigpt.doctor.observations import (
    observe_dead_units,
    observe_entropy,
    observe_gradients,
    observe_norms,
)
from minigpt.doctor.report import Findings, first_failure, lines, place, verdict
from minigpt.doctor.training_checks import (
    look_at_first_loss,
    look_at_overfitting,
    look_at_parameters,
    look_at_targets,
)
from minigpt.errors import RunError

#: What takes a moment, and is run before training if asked for.
QUICK = (
    Check(
        "targets",
        "the batch's targets are its input shifted by one",
        "The model is trained to predict something other than the next token. Look at where"
        " inputs and targets are cut from the stream (minigpt/data/batches.py, make_batch).",
        look_at_targets,
    ),
    Check(
        "formula",
        "attention equals plain loops written from the formula (float64)",
        "Attention is not softmax(q kᵀ / √D) v in each head, merged and projected. Look at the"
        " scale (once, by √D), the order q, k, v, the transpose of the keys, the mask (-inf before"
        " the softmax), the softmax's axis (the last), the heads' split and merge, and the output"
        " projection (minigpt/model/attention.py).",
        look_at_formula,
    ),
    Check(
        "repeat",
        "two evaluation passes are equal",
        "Something random is left on in evaluation: look for dropout that does not ask whether the"
        " module is training.",
        look_at_repeat,
    ),
    Check(
        "rows",
        "attention rows sum to one, masked columns are zero",
        "The mask hides the wrong keys, or is applied after the softmax. Look at what it hides"
        " (True means 'may be read'), its triangle (keys <= queries), and that it is put in as -inf"
        " before the softmax (minigpt/model/attention.py, attention_mask).",
        look_at_rows,
    ),
    Check(
        "causality",
        "changing the future changes no earlier logit (float64)",
        "A position sees what it has to predict, so training will look too good and generation will"
        " fail. Look at the mask of both ways to attention, and for anything else that mixes"
        " positions.",
        look_at_causality,
    ),
    Check(
        "padding",
        "padding changes nothing real",
        "Real positions read padded ones, or sit at other positions because of them. Look at how"
        " `real` enters the mask: it is keys that have to be hidden (minigpt/model/attention.py,"
        " attention_mask).",
        look_at_padding,
    ),
    Check(
        "order",
        "permuting the input permutes the output only with positions and mask off",
        "The model does not know the order of its tokens, or knows it from where it should not."
        " Look at where positions are added to the embeddings (minigpt/model/gpt.py, hidden), or"
        " queries and keys turned by them (minigpt/model/attention.py).",
        look_at_order,
    ),
    Check(
        "paths",
        "readable and fast attention agree",
        "One of the two is wrong; the checks before this one tell which. Look at what each makes of"
        " mask, scale and dropout (minigpt/model/attention.py).",
        look_at_paths,
    ),
    Check(
        "cache",
        "cache and full forward agree",
        "Generation goes on from something else than what was read. Look at where keys and values"
        " are written and how far the cache is advanced (minigpt/model/kv_cache.py), and at the"
        " positions of new tokens (minigpt/model/gpt.py, hidden).",
        look_at_cache,
    ),
    Check(
        "composition",
        "the model is its formula: embeddings, blocks, norms, head (float64)",
        "A part is left out, used twice or in another place than the settings say. Look at the"
        " residual sums, norms and activation (minigpt/model/block.py), and at what happens before"
        " the first block and after the last (minigpt/model/gpt.py).",
        look_at_composition,
    ),
    Check(
        "first_loss",
        "the initial loss is near ln V (fresh models)",
        "The new model prefers some tokens before it has seen any: its first steps go into"
        " unlearning that. Look at the initialisation and at what scales the logits.",
        look_at_first_loss,
    ),
    Check(
        "parameters",
        "the head is the embedding, the count is right, each parameter is trained",
        "Parameters are doubled, missing or not trained as they should be. Look at how logits are"
        " made (minigpt/model/gpt.py), for a layer that is made and not used, and at the groups"
        " (minigpt/training/optimizer.py).",
        look_at_parameters,
    ),
    Check(
        "step",
        "generation's own step is the model's forward pass (float64)",
        "Generation computes another model than training does. What was changed in the modules has"
        " to be changed in minigpt/model/token_step.py too.",
        look_at_step,
    ),
)

#: What takes longer: a little training.
OVERFIT = Check(
    "overfit",
    "one batch can be overfitted",
    "What cannot learn two rows by heart learns nothing else. If all before this is in order,"
    " look at the residual sums and the norms (minigpt/model/block.py), for a loss that is not"
    " that of the targets, and for weights that have grown too large to move.",
    look_at_overfitting,
)

#: A look at what goes on inside, which can warn and never fails.
OBSERVATIONS = (
    Check(
        "entropy",
        "no head reads everything alike or one position only",
        "A uniform head adds nothing but a mean and a collapsed one looks at a single position:"
        " some are useful, many are a waste. Train longer, or with fewer heads.",
        observe_entropy,
    ),
    Check(
        "norms",
        "logits and activations are of a size that numbers hold well",
        "Large numbers lose their last digits, and a softmax over large logits is all or nothing."
        " Look at the learning rate, and for weights that weight decay does not reach.",
        observe_norms,
    ),
    Check(
        "dead_units",
        "the MLPs' units are in use",
        "A silent unit gets no gradient and will stay silent. Look at the learning rate and at the"
        " activation: relu lets units die more easily than gelu.",
        observe_dead_units,
    ),
    Check(
        "gradients",
        "every block gets gradient of a like size",
        "Blocks with far smaller gradients hardly learn. Look at the order of the norms"
        " (model.norm_order) and at the initialisation.",
        observe_gradients,
    ),
    Check(
        "length",
        "the cost of attention as T doubles, against T²",
        "The time for loading data should vanish beside that for reading it.",
        observe_lengths,
    ),
)


#: All of them, in order.
CHECKS = (*QUICK, OVERFIT, *OBSERVATIONS)


def examine(subject: Subject, checks: Sequence[Check] = CHECKS) -> Iterator[tuple[Check, Finding]]:
    """Run the checks in order, each in spite of those that failed; global random state is kept."""
    for check in checks:
        with torch.random.fork_rng():
            yield check, _found(check, subject)


def examine_aloud(
    subject: Subject, checks: Sequence[Check], show: Callable[[str], None]
) -> Findings:
    """Run the checks and `show` what each found as soon as it is known."""
    findings: Findings = []
    for each in examine(subject, checks):
        findings.append(each)
        show(lines(findings))
    return findings


def examine_before_training(subject: Subject, say: Callable[[str], None]) -> None:
    """Run the quick checks and `say` what each found; `RunError` if one failed."""
    findings = examine_aloud(subject, QUICK, say)
    say(f"{verdict(findings)}\n")
    if (failure := first_failure(findings)) is not None:
        _, finding = failure
        raise RunError(
            f"doctor: check {place(failure, findings)} failed: {finding.cause or finding.figure};"
            " nothing was trained (doctor=false trains all the same)"
        )


def _place(error: Exception) -> str:
    """The line of the program, outside of these checks, that an error comes from."""
    room = Path(__file__).parent
    elsewhere = {room, room.parent / "model" / "linear.py"}  # a layer gets what others give it
    program = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if room.parent in (path := Path(frame.filename)).parents
        and elsewhere.isdisjoint((path, path.parent))
    ]
    return f"{program[-1].filename}, line {program[-1].lineno}," if program else "a check"


def _found(check: Check, subject: Subject) -> Finding:
    """What a check finds; an error that the model raises is a finding too."""
    try:
        found = check.look(subject)
    except Exception as error:  # noqa: BLE001  any error of the model's is what is looked for
        message = " ".join(str(error).split())
        found = Finding(
            status="warning" if check in OBSERVATIONS else "failed",
            figure=f"{type(error).__name__}: {message}",
            cause=f"the model cannot be run: {_place(error)} raises an error",
        )
    broken = next((n for n, p in subject.model.named_parameters() if not p.isfinite().all()), None)
    if found.status != "failed" or broken is None:
        return found
    return Finding(
        status="failed",
        figure=found.figure,
        cause=f"the weights are not finite: the first is {broken}",
    )
