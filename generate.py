"""Continue prompts with a trained model: python generate.py prompt="Once upon a time".

Text goes to standard output, notices to standard error. One sample is streamed as it is
generated; several are made side by side and shown whole, in the order of the prompts, each after
a line `--- prompt 2, sample 1`. With format=json each is a line.
"""

import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from minigpt import command_line
from minigpt.config import GenerateConfig
from minigpt.output import (
    check_output,
    json_line,
    prepare_standard_output,
    say,
    write_output,
)
from minigpt.run_folder import find_checkpoint

if TYPE_CHECKING:
    from minigpt.checkpoint import LoadedModel
    from minigpt.generation.decode import Continuation, Decoding
    from minigpt.generation.prompts import Prompt


def main(config: GenerateConfig, _named: frozenset[str] = frozenset()) -> None:
    """Load a checkpoint, decode, print."""
    from minigpt.generation.prompts import read_prompts

    texts = read_prompts(config.prompt, config.prompt_file)
    check_output(config.output)
    checkpoint = find_checkpoint(config.checkpoint)

    from minigpt.checkpoint import load_model
    from minigpt.generation.placement import find_device, find_dtype

    device = find_device(config.device)
    loaded = load_model(checkpoint, device=device, dtype=find_dtype(config.dtype, device))
    decoding = plan(config, loaded)
    prompts = encode(config, loaded, texts)
    seed = secrets.randbits(32) if config.seed is None else config.seed
    alone = len(prompts) * config.num_samples == 1
    streamed = config.stream and alone and config.format == "text" and not config.output
    prepare_standard_output()
    began = time.perf_counter()
    show = show_streamed if streamed else show_whole
    n_tokens = show(config, loaded, decoding, prompts, seed)
    if sys.stderr.isatty():
        seconds = time.perf_counter() - began
        say(f"{n_tokens} tokens in {seconds:.2f} s, {n_tokens / seconds:.0f} a second, seed={seed}")


def plan(config: GenerateConfig, loaded: "LoadedModel") -> "Decoding":
    """What the decoder is to do; `InputError` where a setting does not fit the model."""
    from minigpt.generation.decode import Decoding, stride_of
    from minigpt.generation.sampling import Sampling

    return Decoding(
        end_id=loaded.tokenizer.end_id,
        vocab_size=loaded.tokenizer.vocab_size,
        max_new_tokens=config.max_new_tokens,
        sampling=Sampling(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p),
        context_stride=stride_of(config.context_stride, loaded.model.config.block_size),
        use_cache=config.use_cache,
    )


def encode(config: GenerateConfig, loaded: "LoadedModel", texts: Sequence[str]) -> "list[Prompt]":
    """The prompts' tokens, with a notice where only the last of them fit into the context."""
    from minigpt.generation.prompts import encode_prompts

    start = config.start_of_document
    if start is None:
        start = loaded.record["documents"] > 1
    prompts = encode_prompts(loaded.tokenizer, texts, start_of_document=start)
    for number, prompt in enumerate(prompts, start=1):
        if len(prompt.ids) > loaded.model.config.block_size:
            say(
                f"prompt {number} has {len(prompt.ids)} tokens and the model reads"
                f" {loaded.model.config.block_size}: its last part is used"
            )
    return prompts


def show_streamed(
    config: GenerateConfig,
    loaded: "LoadedModel",
    decoding: "Decoding",
    prompts: "Sequence[Prompt]",
    seed: int,
) -> int:
    """Show the one sample as it grows; the number of tokens generated."""
    from minigpt.generation.decode import stream
    from minigpt.generation.text_stream import TextStream

    text = TextStream(loaded.tokenizer.token_bytes)
    notices: list[str] = []
    n_tokens = 0
    write_output("", prompts[0].text if config.echo else "")
    try:
        for token in stream(loaded.model, prompts[0].ids, decoding, seed=seed, say=notices.append):
            n_tokens += 1
            write_output("", text.push(token))
    finally:  # after Ctrl-C too; on a terminal a notice would stand in the middle of the text
        write_output("", text.finish() + "\n")
        for notice in notices:
            say(notice)
    return n_tokens


def show_whole(
    config: GenerateConfig,
    loaded: "LoadedModel",
    decoding: "Decoding",
    prompts: "Sequence[Prompt]",
    seed: int,
) -> int:
    """Generate all samples, then show them; the number of tokens generated."""
    from minigpt.generation.decode import generate

    results = generate(
        loaded.model,
        [prompt.ids for prompt in prompts],
        decoding,
        seed=seed,
        num_samples=config.num_samples,
        batch_size=config.batch_size,
        say=say,
    )
    write_output(config.output, "".join(lines(config, loaded, prompts, results, seed)))
    return sum(len(result.ids) for result in results)


def lines(
    config: GenerateConfig,
    loaded: "LoadedModel",
    prompts: "Sequence[Prompt]",
    results: "Sequence[Continuation]",
    seed: int,
) -> Iterator[str]:
    """What is shown of each sample, in order; `results` has a prompt's samples together."""
    for i, result in enumerate(results):
        number, sample = divmod(i, config.num_samples)
        prompt, text = prompts[number].text, loaded.tokenizer.decode(result.ids)
        if config.format == "text":
            heading = f"--- prompt {number + 1}, sample {sample + 1}\n" if len(results) > 1 else ""
            yield f"{heading}{prompt if config.echo else ''}{text}\n"
        else:
            yield json_line(
                {
                    "prompt": prompt,
                    "sample": sample,
                    "text": text,
                    "ids": result.ids,
                    "reason": result.reason,
                    "seed": seed,
                    "tokens_per_second": round(len(result.ids) / max(result.seconds, 1e-9), 1),
                }
            )


if __name__ == "__main__":
    sys.exit(command_line.run(main, GenerateConfig, "generate"))
